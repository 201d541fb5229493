"""What an agent asks the engine for in one call of `Tools.play` or `Tools.interact`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from scope_jax.config import Config
from scope_jax.play.rollouts import Agent, Rollout
from scope_jax.play.tool_calls import Tool
from scope_jax.play.tool_execution import RolloutCalls
from scope_jax.play.tool_responder import stops_of, tool_responder
from scope_jax.play.tools import BASE
from scope_jax.play.turns import Joiner
from scope_jax.rollouts.keys import key_data
from scope_jax.rollouts.types import Request, SamplingParams
from scope_jax.run.sampler import Sampler
from scope_jax.text.messages import Messages

PROMPTS = 1024  # of an agent that are kept encoded during a call: samples of a rollout often begin alike


class AgentRequests:
    """Makes the requests of an agent.

    name: the agent's. tools: what it may call. eos_ids: end tokens. exam: its episodes have the length of an exam's.
    """

    def __init__(
        self,
        name: str,
        agent: Agent,
        tools: Sequence[Tool],
        *,
        cfg: Config,
        joiner: Joiner,
        eos_ids: Sequence[int],
        sampler: Sampler,
        exam: bool,
    ) -> None:
        self.name = name
        self._agent = agent
        self._tools = tools
        self._cfg = cfg
        self._joiner = joiner
        self._exam = exam
        self._weights = sampler.weights(agent.policy)
        self._policy = sampler.named(agent.policy)
        sampling = agent.sampling
        self._params = SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            stop=stops_of(agent, tools, joiner),
            stop_ids=tuple(eos_ids),
            tempered_logprobs=agent.tempered,
            thought=joiner.thought,
            tags_in_thinking=cfg.model.tags_in_thinking,
            ends=cfg.model.stop,
        )
        schemas = [tool.schema for tool in tools]
        self._declaring = lambda messages: messages.declaring(schemas)
        self.prompt = lru_cache(PROMPTS)(lambda messages: tuple(joiner.prompt(self._declaring(messages))))

    def prompts(self, rollouts: Sequence[Rollout]) -> dict[str, tuple[int, ...]]:
        """The ids of the prompts of rollouts without a generator, by name; equal messages are encoded once."""
        alone = [rollout for rollout in rollouts if rollout.play is None]
        distinct = {rollout.messages for rollout in alone if rollout.prompt_ids is None}  # long, and often equal
        encoded = {messages: self.prompt(messages) for messages in distinct}
        return {
            rollout.name: encoded[rollout.messages] if rollout.prompt_ids is None else rollout.prompt_ids
            for rollout in alone
        }

    def request(
        self,
        rollout: Rollout,
        messages: Messages,
        ids: tuple[int, ...],
        key: tuple[int | str, ...],
        calls: RolloutCalls,
        name: str,
        group: str | None,
    ) -> Request:
        """The request of a row whose prompt is `messages`, with these ids. key: what its random numbers depend on.
        name: that of the sample of the agent, for its calls."""
        agent, joiner = self._agent, self._joiner
        respond = None
        if self._tools:
            responder = tool_responder(name, agent, self._tools, calls.run, joiner, rollout.remark)
            respond = joiner.responder(responder, self._declaring(messages))
        return Request(
            prompt_ids=ids,
            params=self._params,
            key=key_data(*key),
            group=group,
            max_turns=agent.max_turns,
            respond=respond,
            max_prompt_tokens=self._shorter(agent.max_prompt_tokens, 1),
            max_response_tokens=self._shorter(agent.sampling.max_response_tokens, len(ids)),
            policy=self._policy,
            weights=self._weights,
            picks=not self._exam and agent.policy != BASE,
            calls=lambda: calls.results.get(name, ()),
        )

    def _shorter(self, limit: int | None, used: int) -> int | None:
        """A limit on a prompt or what follows it, lowered to what `used` tokens leave of the longest episode here, if
        the engine has room for a longer one."""
        longest = self._cfg.exam_length if self._exam else self._cfg.rollout.max_length
        if longest == self._cfg.engine_length:
            return limit
        return min(max(longest - used, 1), limit or longest)
