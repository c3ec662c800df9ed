//! What a model's tokens and text mean, apart from any engine.
//!
//! [`prompt`] makes the ids of a prompt, with the model's own [`template`] and [`tokenizer`], and
//! [`detokenizer`] text of what was sampled. [`parse`] takes that text apart: reasoning, visible
//! text and tool calls, in the format the model's family was trained on. Everything here is pure:
//! no IO, no clock, no knowledge of who samples or who asks.

#[cfg(feature = "prompts")]
pub mod detokenizer;
pub mod parse;
#[cfg(feature = "prompts")]
pub mod prompt;
#[cfg(feature = "prompts")]
pub mod python_json;
#[cfg(feature = "prompts")]
pub mod template;
#[cfg(feature = "prompts")]
pub mod tokenizer;
