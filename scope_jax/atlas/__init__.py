"""Atlas: a real but tiny world in which every game runs whole on a laptop CPU (DESIGN §8)."""
