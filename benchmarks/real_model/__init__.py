"""A real pretrained model on two cores: rows, errors and curves of docs/real_model.md."""
