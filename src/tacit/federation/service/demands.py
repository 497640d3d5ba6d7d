"""What a member demands of others where its guarantee rests on them: noise is in shares, and sums are masked."""

from dataclasses import dataclass, replace

from tacit.errors import TacitError
from tacit.federation.service.client_dir import Agreement
from tacit.federation.service.offer import Offer
from tacit.privacy.ledger.statement import shown
from tacit.privacy.mechanisms.distributed_plan import epsilon_alone


@dataclass(frozen=True)
class Demands:
    """What a member wants beyond the offer. An offer that does not meet it is not joined."""

    own_noise: float | None = None  # the least multiplier that its own share of the noise must give it
    threshold: float | None = None  # the least share of a cohort that may unmask a sum
    confirm: bool = False  # takes nobody for a member whose fingerprint was not accepted here

    def made(self, word: Agreement) -> Agreement:
        """The agreement with these demands, or a `TacitError` if the offer does not meet them."""
        wanted = (
            ("the noise of one's own share", self.own_noise, word.own_noise),
            ("the threshold", self.threshold, word.threshold),
        )
        for what, mine, offered in wanted:
            if mine is not None and not offered >= mine:
                raise TacitError(f"{what} is {offered:.3g} in this offer, below the {mine:g} that you demand")
        return replace(word, members=1) if self.confirm else word


def about_others(offer: Offer, word: Agreement) -> list[str]:
    """What a member should know who joins."""
    if not word.plan.startswith("distributed"):
        return []
    plan, level = offer.planned(word.level), offer.levels[word.level]
    first = "nobody is taken for a member whose fingerprint you have not accepted"
    if word.members > 1:
        first = f"the first {word.members} names are taken as they come, with their keys, and no others"
    return [
        f"Your share of the noise alone has a multiplier of {word.own_noise:.3g}. That is all that protects you if the "
        f"server, against its word, plays every other member: epsilon {shown(epsilon_alone(plan))} at delta "
        f"{level.delta:g}, not {level.guarantee}.",
        f"Members are pinned: {first}. Compare fingerprints with them: `tacit members`.",
    ]
