"""`lmprog.Fleet`: programs on several runtimes behind one backend.

Combines `lmprog.fleet` with the client. Imported on first use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from lmprog import wire
from lmprog.backends.client import CallOp, Client, ClientCall, RuntimeBackend
from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter, UnknownName
from lmprog.fleet.fleet_channel import DEFAULT_SLOTS, UPDATE_SECONDS, FleetChannel
from lmprog.fleet.local_members import LocalMembers, launches, next_generation
from lmprog.fleet.members import Members, members_at
from lmprog.transport import CurveClient, client_keys

SETTLE_SECONDS = 1.0
"""In which runtimes that are up have answered; others may come later."""


class NamedClient(Client):
    """A fleet's client, which opens branches on the model of one name."""

    def __init__(self, whole: Client, welcome: wire.Welcome) -> None:
        self._whole = whole
        self.welcome = welcome
        self.number, self.together = whole.number, whole.together  # type: ignore[method-assign]
        self.hurry, self.flush = whole.hurry, whole.flush  # type: ignore[method-assign]

    @property
    def closed(self) -> bool:
        return self._whole.closed

    def post(self, *ops: wire.Op) -> None:
        self._whole.post(*map(self._named, ops))

    def begin(self, op: CallOp, call: ClientCall) -> None:
        self._whole.begin(op, call)

    def close(self) -> None:
        """The fleet closes its client."""

    def _named(self, op: wire.Op) -> wire.Op:
        return op.named(self.welcome.served_name) if isinstance(op, wire.Open) else op


class ModelBackend:
    """Programs on one of a fleet's models."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def close(self) -> None:
        """It is closed with its fleet."""


class Fleet(RuntimeBackend):
    """The backend on the runtimes at `addresses`, all with the same model, or with one for each
    name that they serve (`served_model_name`).

    A program stays on one runtime, which holds its prefixes; if that runtime dies, the program
    continues on another one, token for token. `slots` is the number of programs that one runtime
    serves well concurrently. Addresses beyond this machine need `keys`, or a folder of them.

    Of several models programs get that of the first address; `fleet["NAME"]` is the backend on
    another. Runtimes with another model than the first one of their name are refused: here at once
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
        self.channel.settle(SETTLE_SECONDS)
        if addresses:
            self._check_models()
        super().__init__(self.channel)
        self._named: dict[str, ModelBackend] = {}

    @property
    def models(self) -> Sequence[str]:
        """The names that are served, the first one first; one that is empty where runtimes have no
        name.
        """
        return list(self.channel.infos)

    def __getitem__(self, served_name: str) -> ModelBackend:
        """The backend for programs on the model of that name; it is closed with the fleet. Raises
        UnknownName.
        """
        infos = self.channel.infos
        if not served_name or served_name not in infos:
            raise UnknownName.of_model(served_name, infos)
        made = ModelBackend(NamedClient(self.client, infos[served_name]))
        return self._named.setdefault(served_name, made)

    def _check_models(self) -> None:
        """Raises InvalidParameter, and closes the fleet, where one name has several."""
        try:
            self.channel.check_models()
        except InvalidParameter:
            self.channel.close()
            raise

    @classmethod
    def local(
        cls,
        model: str | RuntimeConfig | Mapping[str, str | RuntimeConfig] = "nano",
        *,
        replicas: int = 2,
        slots: int = DEFAULT_SLOTS,
        **options: Any,
    ) -> Self:
        """Starts `replicas` runtimes on this machine, and restarts those that die or hang: of one
        `model`, or of each of several, by the names under which they are served (`{"small": ...,
        "large": ...}`). `options` are those of `lmprog.Runtime`.
        """
        if replicas < 1:
            raise InvalidParameter(
                "a fleet has at least one replica", name="replicas", value=replicas, allowed=">= 1"
            )
        models = model if isinstance(model, Mapping) else {"": model}
        if not models:
            raise InvalidParameter("a fleet has at least one model", name="model")
        members = LocalMembers(launches(models, replicas, options), replicas)
        members.until_started()
        fleet = cls(members=members, slots=slots)
        fleet._check_models()
        fleet.channel.wait_for(members.size)
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
        name: str | Sequence[str] = "default",
        *,
        address: str = "auto",
        keys: CurveClient | str | None = None,
        slots: int = DEFAULT_SLOTS,
    ) -> Self:
        """The replicas of the application `name` (`lmprog.ray.app`), or of several with a model
        each, that run in a Ray cluster: the one that this process is in, else the one at `address`.
        """
        from lmprog.ray.ray_cluster import joined_members

        return cls(members=joined_members(name, address, client_keys(keys)), slots=slots)
