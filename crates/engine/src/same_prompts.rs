//! Whether two engines make the same prompts, so that a conversation may go on at either.
//!
//! In chat mode each engine renders the conversation itself; in token mode Polar does for both,
//! which each was held to at its start.

use crate::token_mode::conversations;
use crate::{Engine, EngineError, Rendering};
use polar_convo::Request;

/// Why two engines are not known to make the same prompts.
#[derive(Debug, thiserror::Error)]
pub enum OtherPrompts {
    /// They make others.
    #[error(
        "the engines {one} and {other} cannot be behind one node: they make different prompts of \
         {conversation}; serve the same model from each, and give neither a chat template of its own"
    )]
    Differ {
        /// An engine.
        one: String,
        /// The other one.
        other: String,
        /// What the conversation holds.
        conversation: &'static str,
    },
    /// One did not answer.
    #[error("the engine {url} was asked for prompts, to compare them with another's: {error}")]
    Engine {
        /// Which.
        url: String,
        /// What it said.
        error: Box<EngineError>,
    },
}

/// Compares the prompts that two engines make.
pub async fn same_prompts(one: &dyn Engine, other: &dyn Engine) -> Result<(), OtherPrompts> {
    if one.token_mode().is_some() && other.token_mode().is_some() {
        return Ok(());
    }
    for (conversation, request) in conversations() {
        let (ours, theirs) = (prompt(one, &request).await?, prompt(other, &request).await?);
        let is_same = match (&ours, &theirs) {
            (Prompt::Length(ours), Prompt::Length(theirs)) => ours == theirs,
            (Prompt::Ids(ours), Prompt::Ids(theirs)) => ours == theirs,
            (Prompt::Ids(ids), Prompt::Length(length))
            | (Prompt::Length(length), Prompt::Ids(ids)) => ids.len() as u64 == *length,
            (Prompt::Untold, _) | (_, Prompt::Untold) | (Prompt::Refused, Prompt::Refused) => true,
            (Prompt::Refused, _) | (_, Prompt::Refused) => false,
        };
        if !is_same {
            let (one, other) = (one.info().url.clone(), other.info().url.clone());
            return Err(OtherPrompts::Differ { one, other, conversation });
        }
    }
    Ok(())
}

/// What an engine makes of a conversation.
enum Prompt {
    Ids(Vec<u32>),
    Length(u64),
    /// Its template does not take such a conversation.
    Refused,
    /// It tells nothing of its prompts.
    Untold,
}

async fn prompt(engine: &dyn Engine, request: &Request) -> Result<Prompt, OtherPrompts> {
    let Some(tokens) = engine.tokens() else { return Ok(Prompt::Untold) };
    match tokens.rendering(request).await {
        Ok(Rendering::Ids(ids)) => Ok(Prompt::Ids(ids)),
        Ok(Rendering::Length(length)) => Ok(Prompt::Length(length)),
        Err(error) if error.status.is_some_and(|status| (400..=500).contains(&status)) => {
            Ok(Prompt::Refused)
        }
        Err(error) => {
            let (url, error) = (engine.info().url.clone(), Box::new(error));
            Err(OtherPrompts::Engine { url, error })
        }
    }
}
