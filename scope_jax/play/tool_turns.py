def tool_responder(name, agent, calls, joiner):
    raise NotImplementedError
