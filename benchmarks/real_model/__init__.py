"""A real pretrained model on two cores: its rows."""
