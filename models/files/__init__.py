"""Files of weights and configurations, in the formats of others and ours."""
