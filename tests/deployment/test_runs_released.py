"""What is said of a run that stopped: nothing was released only if nothing was asked for."""

import pytest

from dpfedc.deployment import runs
from dpfedc.deployment.heads import KeptHeads
from dpfedc.deployment.messages import Refusal
from dpfedc.deployment.round_calls import TooFewAnswers
from dpfedc.errors import DPFedCError
from support.deployment import MemoryTransport, agreed


class Nobody:
    """A transport to sites that are all away."""

    def online(self):
        return {}

    def exchange(self, requests, deadline_s):
        return {}


def too_few_accept(agreement, folder):
    with pytest.raises(DPFedCError, match="must be accepted by 3 sites, got 0") as said:
        runs.acceptances(Nobody(), agreement, 0.0, folder=folder, heads=KeptHeads(folder))
    return str(said.value)


def stopped(tmp_path, at_exchange):
    """Return the agreement and the folder of a run that a refusal of one site has stopped."""
    agreement = agreed(min_answers=3)
    faults = {("geneva", at_exchange): Refusal("not now")}
    transport = MemoryTransport(agreement, tmp_path, faults=faults)
    coordinator = transport.coordinator()
    folder = tmp_path / agreement.digest
    coordinator.folder = coordinator._sites.folder = folder
    with pytest.raises(TooFewAnswers):
        coordinator.run()
    return agreement, folder


def test_nothing_has_been_released_before_the_first_round(tmp_path):
    assert "Nothing has been released." in too_few_accept(agreed(min_answers=3), tmp_path)


def test_a_first_round_that_was_sent_may_have_been_answered(tmp_path):
    agreement, folder = stopped(tmp_path, 1)
    assert runs.standing(folder) == "0 rounds done, can be resumed"
    said = too_few_accept(agreement, folder)
    assert "Nothing" not in said
    assert "what sites answered stays released and charged" in said


def test_rounds_that_were_done_are_counted(tmp_path):
    agreement, folder = stopped(tmp_path, 3)
    assert runs.standing(folder) == "2 rounds done, can be resumed"
    said = too_few_accept(agreement, folder)
    assert "Nothing" not in said
    assert "2 rounds done before; what was released in them stays released and charged" in said
