//! What the engines of one gateway have in common, so that a session may move between them.

use polar_engine::{Engine, EngineInfo};

/// Two engines that are not the same to a session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Disagreement(String);

/// Checks one engine against another.
pub(super) fn check(one: &dyn Engine, other: &dyn Engine) -> Result<(), Disagreement> {
    let (a, b) = (one.info(), other.info());
    let found = first_difference(a, b).or_else(|| {
        let sees = |engine: &dyn Engine| engine.token_mode().is_some_and(|mode| mode.sees());
        let (ours, theirs) = (sees(one), sees(other));
        (ours != theirs || ours && a.kind != b.kind).then(|| {
            let word = |sees, info: &EngineInfo| match sees {
                true => format!("{} takes pictures behind ids", info.kind.name()),
                false => format!("{} takes none", info.kind.name()),
            };
            let mend = "use engines of one kind for a model that sees";
            ("way with pictures", word(ours, a), word(theirs, b), mend)
        })
    });
    let Some((what, ones, others, mend)) = found else { return Ok(()) };
    Err(Disagreement(format!(
        "the engines {} and {} cannot be behind one node: their {what} differs ({ones}, {others}); \
         {mend}",
        a.url, b.url
    )))
}

type Difference = (&'static str, String, String, &'static str);

fn first_difference(a: &EngineInfo, b: &EngineInfo) -> Option<Difference> {
    let known = |number: Option<u64>| number.map_or("unknown".to_owned(), |n| n.to_string());
    if a.model != b.model {
        let mend = "serve the same model under the same name from each \
                    (vLLM, SGLang: --served-model-name; llama.cpp: --alias)";
        return Some(("model", a.model.clone(), b.model.clone(), mend));
    }
    // What one does not tell is not held against it.
    if a.context_window.is_some()
        && b.context_window.is_some()
        && a.context_window != b.context_window
    {
        let mend = "start each with the same context length";
        return Some(("context window", known(a.context_window), known(b.context_window), mend));
    }
    // Some kinds count what pads the model's matrices, and others don't.
    let sizes = (a.vocab_size, b.vocab_size);
    if let (Some(ones), Some(others)) = sizes
        && a.kind == b.kind
        && ones != others
    {
        let mend = "serve the same model from each";
        return Some(("vocabulary", ones.to_string(), others.to_string(), mend));
    }
    let files = |info: &EngineInfo| match &info.token_mode {
        None => "chat mode".to_owned(),
        Some(mode) => format!(
            "template {}, tokenizer {}, parsers {} and {}",
            short(&mode.template),
            short(&mode.tokenizer),
            mode.tool_parser,
            mode.reasoning_parser
        ),
    };
    if a.token_mode != b.token_mode {
        let mend = "serve the same model from each, and give its files with --model-files";
        return Some(("template or tokenizer", files(a), files(b), mend));
    }
    None
}

fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}
