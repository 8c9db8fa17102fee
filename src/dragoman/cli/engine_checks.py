"""What ``dragoman doctor`` asks of a running engine: is it there, and was it started the right way.

An engine that was started wrongly answers everything, and the data recorded through it is worthless; so each flag is
found out from how the engine behaves.
"""

import math
from typing import Any

import httpx

from dragoman.cli.checks import Check, bad, good, remark

TEMPERATURE = 0.7
_PROMPTS = ([1, 2, 3], [5, 8, 13, 21, 34], [2, 4, 6, 8, 10, 12, 14])
"""Any short lists of ids that every vocabulary has."""
_START = "start it with `dragoman engine`"
_LOOK = f"look at its log, or {_START}"


def check_engine(address: str, timeout: float = 30.0) -> tuple[list[Check], str | None]:
    """All checks of the engine at ``address``, and the folder or name of its model (``None``: it did not say)."""
    with httpx.Client(base_url=address, timeout=timeout, trust_env=False) as http:
        try:
            health = http.get("/health")
        except httpx.HTTPError as error:
            return [bad("engine", f"nothing answers at {address} ({error or type(error).__name__})", _START)], None
        if health.status_code != 200:
            return [bad("engine", f"{address}/health answers {health.status_code}", _LOOK)], None
        try:
            entry = http.get("/v1/models").raise_for_status().json()["data"][0]
            served, root = str(entry["id"]), str(entry.get("root") or entry["id"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            return [bad("engine", f"{address}/v1/models names no model ({error!r})", _START)], None
        checks = [good("engine", f"{address} serves {root}, up to {entry.get('max_model_len', '?')} tokens")]
        for name, check in (
            ("scale-out", check_scale_out),
            ("logprobs", check_logprobs_mode),
            ("control", check_control),
        ):
            try:
                checks.append(check(http, served))
            except httpx.HTTPStatusError as error:
                checks.append(bad(name, f"{error.request.url.path} answers {error.response.status_code}", _LOOK))
            except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
                checks.append(bad(name, f"the engine's answer made no sense: {error!r}", _LOOK))
        return checks, root


def check_scale_out(http: httpx.Client, model: str) -> Check:
    """Whether the one route that the gateway samples through is open."""
    body = {"token_ids": _PROMPTS[0], "sampling_params": {"max_tokens": 1, "logprobs": 0}}
    reply = http.post("/inference/v1/generate", json=body)
    if reply.status_code in (403, 404):
        return bad(
            "scale-out",
            f"/inference/v1/generate answers {reply.status_code}",
            f"start vLLM with --enable-scale-out, or {_START}",
        )
    choice = reply.raise_for_status().json()["choices"][0]
    if len(choice["token_ids"]) != 1 or not choice["logprobs"]["content"]:
        raise ValueError("one token was asked for with its log-probability")
    return good("scale-out", "/inference/v1/generate gives token ids and log-probabilities")


def check_logprobs_mode(http: httpx.Client, model: str) -> Check:
    """Whether log-probabilities are those of the distribution that is sampled from.

    With logits z the gap between two tokens' log-probabilities is (z₁ - z₂) / T in the processed distribution and
    z₁ - z₂ in the raw one. So the gap between the likeliest and the least likely of a few top tokens at T = 0.7,
    divided by the one at T = 1, is 1.43 when processed and 1 when raw, whatever was sampled.
    """
    for prompt in _PROMPTS:
        plain = _top_logprobs(http, model, prompt, 1.0)
        cooled = _top_logprobs(http, model, prompt, TEMPERATURE)
        shared = sorted(plain.keys() & cooled.keys(), key=lambda token: plain[token])
        gap = plain[shared[-1]] - plain[shared[0]] if len(shared) > 1 else 0.0
        if not math.isfinite(gap) or gap < 1e-3:
            continue  # too flat to tell
        ratio = (cooled[shared[-1]] - cooled[shared[0]]) / gap
        if ratio > (1 + 1 / TEMPERATURE) / 2:
            return good(
                "logprobs", f"of the distribution that is sampled (at T {TEMPERATURE}: gaps grow {ratio:.2f} times)"
            )
        return bad(
            "logprobs",
            f"of the raw model, not of what is sampled (at T {TEMPERATURE}: gaps grow {ratio:.2f} times)",
            f"start vLLM with --logprobs-mode processed_logprobs, or {_START}",
        )
    return bad("logprobs", "every token is equally likely, so their mode cannot be told", "is this a trained model?")


def _top_logprobs(http: httpx.Client, model: str, prompt: list[int], temperature: float) -> dict[str, float]:
    """Log-probabilities of the likeliest next tokens, by token. This route works without scale-out too."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": 1,
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": -1,
        "logprobs": 5,
        "return_tokens_as_token_ids": True,
        "seed": 1,
    }
    reply = http.post("/v1/completions", json=body).raise_for_status().json()
    return {token: float(value) for token, value in reply["choices"][0]["logprobs"]["top_logprobs"][0].items()}


def check_control(http: httpx.Client, model: str) -> Check:
    """Whether a trainer could pause the engine and push weights."""
    if http.get("/is_paused").status_code == 200:
        return good("control", "can be paused for new weights")
    return remark("control", "no control routes, so no weights can be pushed; VLLM_SERVER_DEV_MODE=1 opens them")
