//! One conversation model for all client dialects.
//!
//! A dialect's request decodes to a [`Request`]; what an engine answers is a sequence
//! of [`ReplyEvent`]s closed by a [`ReplyEnd`]; a dialect's encoder turns those into
//! its stream. A unary reply is a fold of the same events. Nothing here knows HTTP,
//! sockets or time; everything is a pure function of its input.
//!
//! What a dialect says and Polar does not act on stays in a `rest` map and is carried
//! through, or is refused with an error in that dialect's own shape.
//!
//! A dialect is a variant of [`Dialect`] and a module with `decode`, `reply`, `error` and
//! `models`; the modules at this level hold what all dialects share and dispatch to them.

mod arguments;
mod calls;
mod chat;
mod fields;
mod google;
mod in_turn;
mod messages;
mod output_format;
mod responses;
mod surrogates;

pub mod decode;
pub mod engine_chat;
pub mod error;
pub mod loss;
pub mod models;
pub mod normalise;
pub mod reply;
pub mod request;
pub mod stream;
pub mod turn_memory;

pub use chat::terms::ChatTerms;
pub use decode::DecodeError;
pub use engine_chat::{
    apply_pins, chat_messages, chat_tool_choice, chat_tools, encode_engine_chat, reply_message,
};
pub use error::{ApiError, ContextUse, ErrorResponse, error_response};
pub use google::terms::{GoogleFraming, GoogleTerms};
pub use loss::{Loss, LossKind};
pub use messages::reply::UNPARSED_ARGUMENTS;
pub use models::{ModelInfo, model_body, models_body, token_count_body};
pub use normalise::{Normaliser, PatternError};
pub use reply::{
    FinishReason, Reply, ReplyBlock, ReplyEnd, ReplyEvent, ReplyHead, SampledToken, Usage,
};
pub use request::{
    Block, Dialect, ImageSource, Message, Request, Role, Sampling, Tool, ToolChoice,
};
pub use responses::history::{OpenTurn, ResponsesHistory};
pub use responses::terms::ResponsesTerms;
pub use stream::{StreamEncoder, unary_body};
pub use turn_memory::{Asked, Edited, HistoryReport, Restored, TurnMemory};
