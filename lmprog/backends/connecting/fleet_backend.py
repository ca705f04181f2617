"""`lmprog.Fleet`: programs on several runtimes behind one backend.

Combines `lmprog.fleet` with the client. Imported on first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from lmprog.backends.client import RuntimeBackend
from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter
from lmprog.fleet.fleet_channel import DEFAULT_SLOTS, UPDATE_SECONDS, FleetChannel
from lmprog.fleet.local_members import LocalMembers, next_generation
from lmprog.fleet.members import Members, members_at
from lmprog.launch import RuntimeProcess
from lmprog.launch.runtime_process import replica_options
from lmprog.transport import CurveClient, client_keys

SETTLE_SECONDS = 1.0
"""In which runtimes that are up have answered; others may come later."""


class Fleet(RuntimeBackend):
    """The backend on the runtimes at `addresses`, all with the same model.

    A program stays on one runtime, which holds its prefixes; if that runtime dies, the program
    continues on another one, token for token. `slots` is the number of programs that one runtime
    serves well concurrently. Addresses beyond this machine need `keys`, or a folder of them.

    Runtimes with another model than the first one that answers are refused: here at once
    (InvalidParameter), later with an error in the log (`channel.refused` names them).
    """

    def __init__(
        self,
        addresses: Sequence[str] = (),
        *,
        keys: CurveClient | str | None = None,
        slots: int = DEFAULT_SLOTS,
        members: Members | None = None,
    ) -> None:
        if not addresses and members is None:
            raise InvalidParameter("a fleet needs the address of a runtime", name="addresses")
        self.members = members or members_at(addresses, client_keys(keys))
        self.channel = FleetChannel(self.members, slots=slots)
        if addresses:
            self._check_models()
        super().__init__(self.channel)

    def _check_models(self) -> None:
        """Raises InvalidParameter, and closes the fleet, where replicas have several."""
        try:
            self.channel.check_first(SETTLE_SECONDS)
        except InvalidParameter:
            self.channel.close()
            raise

    @classmethod
    def local(
        cls,
        model: str | RuntimeConfig = "nano",
        *,
        replicas: int = 2,
        slots: int = DEFAULT_SLOTS,
        **options: Any,
    ) -> Self:
        """Starts `replicas` runtimes on this machine, and restarts those that die or hang.
        `options` are those of `lmprog.Runtime`.
        """
        if replicas < 1:
            raise InvalidParameter(
                "a fleet has at least one replica", name="replicas", value=replicas, allowed=">= 1"
            )
        options = replica_options(options) if replicas > 1 else options
        members = LocalMembers(
            lambda generation: RuntimeProcess(model, **{**options, "generation": generation}),
            replicas,
        )
        members.until_started()
        fleet = cls(members=members, slots=slots)
        fleet._check_models()
        fleet.channel.wait_for(replicas)
        return fleet

    def update(self, seconds: float = UPDATE_SECONDS) -> None:
        """Goes over to the model that the folder has now, where the fleet started its replicas
        (`local`): they are replaced one after the other. Programs end with the model that they
        began with, new ones begin with the new one. Each replica has `seconds` for what runs there;
        then programs are moved, and those of the last one fail. Returns at once. Raises
        InvalidParameter where replicas run elsewhere: there each says its `generation`.
        """
        self.channel.replace_all(next_generation(self.members), seconds)

    @classmethod
    def from_ray(
        cls,
        name: str = "default",
        *,
        address: str = "auto",
        keys: CurveClient | str | None = None,
        slots: int = DEFAULT_SLOTS,
    ) -> Self:
        """The replicas of the application `name` (`lmprog.ray.app`) that runs in a Ray cluster:
        the one that this process is in, else the one at `address`.
        """
        from lmprog.ray.ray_cluster import joined_members

        return cls(members=joined_members(name, address, client_keys(keys)), slots=slots)
