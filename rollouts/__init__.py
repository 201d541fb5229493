"""Generation: an engine with static slots, continuous batching, multi-turn episodes."""
