"""What rollouts act on: environments, programs, tools of others, and the sandbox."""
