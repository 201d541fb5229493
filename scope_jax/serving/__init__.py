"""A model behind OpenAI's protocol and JetStream's: requests, replies, limits, metrics; and its terminal chat."""
