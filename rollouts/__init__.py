"""Generation: an engine of static slots, continuous batching, episodes of many turns."""
