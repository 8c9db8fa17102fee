"""What ``docs/store.md`` says of tables and columns beyond the docstrings of models and records."""

ABOUT = {
    "calls": "A request on a generation route: written on arrival, completed once by its outcome.",
    "tasks": "What agents are asked to do. A task is there as soon as an episode names it.",
    "episodes": "One run of an agent, from its opening to its end.",
}
"""Table → what it is, where the model does not say."""

NOTES = {
    "*.row": "Number given by the database; grows.",
    "blobs.digest": "The first 16 bytes of the SHA-256 of the JSON.",
    "tasks.name": "As the operator named it.",
    "episodes.profile": "`train` or `as_asked`: whose sampling settings are used.",
    "episodes.metadata": "What the operator said when opening it.",
    "episodes.opened_at": "Unix seconds.",
    "episodes.ended_at": "Unix seconds. None: it is open.",
    "episodes.end": "`completed`, `failed`, `timed_out` or `abandoned`. None: it is open.",
    "episodes.end_reason": "In words. None: it is open, or none was given.",
    "episodes.reward": "The reward that was set last; `rewards` has them all. None: none was set.",
    "credentials.expires_at": "Unix seconds; the token opens nothing after that.",
    "rewards.reward": "A finite number.",
    "rewards.set_at": "Unix seconds.",
    "artefacts.stored_at": "Unix seconds.",
    "artefacts.content_type": "As whoever stored it said.",
    "calls.status": "`arrived` (an open call), `answered`, `observed` (by the real provider while we looked on), "
    "`refused`, `failed` or `aborted`.",
    "calls.provider": "The dialect: `anthropic`, `openai_chat`, `openai_responses` or `google`.",
    "calls.arrived_at": "Unix seconds.",
    "calls.kind": "`main`, `subagent`, `side`, `compaction` or `warm_up`.",
    "calls.harness_version": "As its User-Agent says. None: unknown.",
    "calls.thread": "The harness's own session, thread or sub-agent id, as its headers name it. None: it names none.",
    "calls.retry_of": "The call whose reply this one was given too, asked again after its client "
    "had gone. None: no retry.",
    "calls.reply": "Digest in `blobs` of the reply's parts as the harness got them. None: it got "
    "none, or the call is open.",
    "calls.prompt_ids": "Only what this call adds to `shared_len` tokens of its parent's stream. "
    "None: the call is open, "
    "or was refused before its prompt was rendered, or was only observed.",
    "calls.completion_ids": "Every sampled id in order, stop ids included. None: nothing was "
    "sampled, or it is not stored.",
    "calls.logprobs": "One for each completion id, of the distribution that was sampled from. None: "
    "as `completion_ids`.",
    "calls.policy_spans": "`[[version, start, end], …]`: which policy version sampled which completion tokens, the end "
    "not included. None: nothing was sampled, or by an unknown version.",
    "calls.fork_reason": "Why it does not keep all of its parent's stream. None: it keeps all, or has no parent.",
    "groups.name": "As the operator named it. None: the group of one episode that named none, of "
    "which a task may have many.",
    "episodes.group_row": "Its group. None: an ad-hoc episode without task and group.",
    "episodes.temperature": "Used by the `train` profile only.",
    "calls.http_status": "Of the reply. None: the call is open, or its gateway was killed before it could answer.",
    "calls.finished_at": "Unix seconds.",
    "calls.error_code": "What went wrong, in one word. None: nothing, or the call is open.",
    "calls.error_message": "What went wrong, as the client was told. None: nothing, or the call is open.",
    "calls.stream": "Whether the reply was asked for as a stream.",
    "calls.parent_id": "The call whose stream this one's prompt begins with. None: it begins anew.",
    "calls.echo_changed": "How many earlier replies the harness sent back changed.",
    "calls.completion_len": "Sampled tokens. None: nothing was sampled, or it is not stored.",
    "calls.finish_reason": "`stop`, `length`, `tool_calls` or `abort`.",
    "calls.first_token_at": "Unix seconds.",
    "calls.engine_started_at": "Unix seconds.",
    "calls.tokenizer_hash": "Of the tokenizer that was used.",
    "calls.template_hash": "Of the chat template that was used.",
    "calls.canonical_version": "Of the rules that undo what harnesses change from turn to turn.",
    "calls.sampling_asked": "What the harness asked for.",
    "calls.sampling_used": "What the engine was told.",
    "leases.consumer": "Name of the training run.",
    "leases.reason": "Why it was set aside. None: it was not.",
    "leases.step": "Optimizer step that it was consumed in. None: it was not, or it was not said.",
    "policies.kind": "`lora` or `full`.",
    "policies.parent": "Version that it was trained from. None: it was not said.",
    "policies.run": "Name of the training run. None: it was published by hand.",
    "policies.step": "Optimizer steps of the run until then. None: it was published by hand.",
    "policies.created_at": "Unix seconds.",
    "policy_loads.status": "`loading`, `serving` or `failed`.",
    "policy_loads.reason": "Why it failed. None: it did not.",
    "policy_loads.at": "Unix seconds.",
    "calls.tools": "Digest of the request's tools in `blobs`. None: it had none, or the call is open.",
}
"""``table.column`` → meaning. ``None:`` begins what null means."""

NULLS = {"calls": "the call is open, or it is not known", "*": "not known"}
"""Table → what null means where the column does not say."""
