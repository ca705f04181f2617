"""Every message between a client and a runtime: frozen, tagged, with declared ranges.

A *frame* is one transport message: a msgpack list of these structs. A client's frame is a list of
ops, so a whole program, or its longest static stretch, is one frame; a runtime's frame is a list of
replies. Branches and calls are numbered by the client that uses them (numbers of different clients
are independent), and a number is used once.

Rules of the protocol:

- The first message of a client is `Hello`; the runtime answers `Welcome`, or `Failed` with code
  `protocol`.
- Ops of one branch run in their order, those of different branches concurrently.
- Every call (`Generate`, `Select`, `Read`, `Describe`, `Inspect`, `Flush`) gets exactly one last
  reply: `CallDone`, `Chosen`, `TextIs`, `Described`, `Snapshot` or `Failed`; `Delta`s come only
  before it. `AwaitPrefixes` may wait for its reply as long as the client is there. A wrong op that
  is not a call (an `Append` of an unknown reference, say) fails its branch: the branch's later
  calls fail with that error.
- Ranges declared here are checked while decoding; what depends on a model (vocabulary, context) is
  checked by the interpreter. Of a frame with a value out of range nothing is carried out: its
  readable calls get `Failed`, and the branches of its other ops fail. A frame that is not a list
  of ops gets `Failed` with `call=None`; before the greeting it is counted and dropped.

Everything is imported from here; `sampling_params` is the table of sampling options. This package
knows no sockets, and of tokens only that they are integers.
"""

from __future__ import annotations

from lmprog.wire.call_form import (
    HERMES,
    CallForm,
    CallSlot,
    KeyedArguments,
    KeyedValue,
    ToolChoice,
    ToolOffer,
    ToolSupport,
)
from lmprog.wire.constraints import (
    AnyOf,
    Choices,
    Composed,
    Constraint,
    FreeText,
    Grammar,
    InOrder,
    JsonSchema,
    Regex,
    Repeated,
)
from lmprog.wire.frames import (
    MAX_FRAME_BYTES,
    MAX_FRAME_OPS,
    PROTOCOL_VERSION,
    MalformedFrame,
    decode_ops,
    decode_replies,
    encode,
    named_in,
    version_in,
)
from lmprog.wire.message import (
    MAX_PREFIX_KEYS,
    SHARES_PUBLIC,
    ContestRule,
    FinishReason,
    Id,
    Keep,
    Message,
    SelectMethod,
    ShortText,
    TokenId,
    Whitespace,
)
from lmprog.wire.ops import (
    Append,
    AwaitPrefixes,
    Cancel,
    Close,
    Contest,
    Conversation,
    Decode,
    Describe,
    Encode,
    Flush,
    Fork,
    Gained,
    Generate,
    Hello,
    Inspect,
    Judge,
    Op,
    Open,
    Piece,
    Read,
    Ref,
    RoleBegin,
    RoleEnd,
    Select,
    SharePrefix,
    TextPiece,
    TokensPiece,
)
from lmprog.wire.replies import (
    CallDone,
    Chosen,
    Delta,
    Described,
    Failed,
    NodeSeen,
    Output,
    PrefixesAre,
    Reply,
    ScoredChoice,
    SequenceSeen,
    Snapshot,
    TextIs,
    TokenLogprob,
    TokensAre,
    Usage,
    Welcome,
)
from lmprog.wire.sampling_params import (
    DIALECTS,
    SAMPLING_OPTIONS,
    Dialect,
    Jump,
    OptionLine,
    SamplingOption,
    SamplingParams,
    Service,
    SuggestedSampling,
    options_of,
    suggested,
)
from lmprog.wire.structural_tags import TagError, structural_tag

__all__ = [
    "DIALECTS",
    "HERMES",
    "MAX_FRAME_BYTES",
    "MAX_FRAME_OPS",
    "MAX_PREFIX_KEYS",
    "PROTOCOL_VERSION",
    "SAMPLING_OPTIONS",
    "SHARES_PUBLIC",
    "AnyOf",
    "Append",
    "AwaitPrefixes",
    "CallDone",
    "CallForm",
    "CallSlot",
    "Cancel",
    "Choices",
    "Chosen",
    "Close",
    "Composed",
    "Constraint",
    "Contest",
    "ContestRule",
    "Conversation",
    "Decode",
    "Delta",
    "Describe",
    "Described",
    "Dialect",
    "Encode",
    "Failed",
    "FinishReason",
    "Flush",
    "Fork",
    "FreeText",
    "Gained",
    "Generate",
    "Grammar",
    "Hello",
    "Id",
    "InOrder",
    "Inspect",
    "JsonSchema",
    "Judge",
    "Jump",
    "Keep",
    "KeyedArguments",
    "KeyedValue",
    "MalformedFrame",
    "Message",
    "NodeSeen",
    "Op",
    "Open",
    "OptionLine",
    "Output",
    "Piece",
    "PrefixesAre",
    "Read",
    "Ref",
    "Regex",
    "Repeated",
    "Reply",
    "RoleBegin",
    "RoleEnd",
    "SamplingOption",
    "SamplingParams",
    "ScoredChoice",
    "Select",
    "SelectMethod",
    "SequenceSeen",
    "Service",
    "SharePrefix",
    "ShortText",
    "Snapshot",
    "SuggestedSampling",
    "TagError",
    "TextIs",
    "TextPiece",
    "TokenId",
    "TokenLogprob",
    "TokensAre",
    "TokensPiece",
    "ToolChoice",
    "ToolOffer",
    "ToolSupport",
    "Usage",
    "Welcome",
    "Whitespace",
    "decode_ops",
    "decode_replies",
    "encode",
    "named_in",
    "options_of",
    "structural_tag",
    "suggested",
    "version_in",
]
