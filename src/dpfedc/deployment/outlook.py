"""What is to come of a round after its replies: enough, wait, go on without it, or the end.

A site that is silent, or refuses for now, may yet answer: the run stops and can be resumed. It is
not waited for for ever. If it gives no answer when the round is asked again, the run goes on
without a round that some site has spent and can never answer. A round that nobody has spent can
wait. None is skipped if the next could not have enough answers either: those who still answer would
pay for nothing. To skip a round costs no privacy, since whatever was answered has been charged.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpfedc.deployment.messages import Refusal

ENOUGH, LOST = "", "lost"
KEPT = "What is done is kept and can be resumed (dpfedc run resume)"
SKIPPED = f"{KEPT}, which goes on without this round if the others still give no answer to it"
OVER = (
    "The run is closed at too many sites to go on; only a new one can. What was charged stays "
    "charged"
)


def outlook(
    replies: Sequence[bytes | Refusal | None],
    n_answers: int,
    *,
    least: int,
    n_sites: int,
    again: bool,
) -> str:
    """Return `ENOUGH`, `LOST`, or in words why the run stops here.

    `replies` has one entry for each site that was asked, None where it was silent; `n_answers` of
    them are valid, and `least` must be. The run has `n_sites`. `again`: the round was asked before.
    """
    if n_answers >= least:
        return ENOUGH
    for_good = [r for r in replies if isinstance(r, Refusal) and r.for_good]
    n_closed = sum(refusal.of_run for refusal in for_good)
    is_spent = len(for_good) > n_closed
    if n_sites - n_closed < least:
        return OVER
    if len(replies) - len(for_good) < least or (again and is_spent):
        return LOST
    return SKIPPED if is_spent else KEPT
