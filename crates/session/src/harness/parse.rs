//! Reading an adapter file, with errors that name the line and the mend.

use super::HarnessAdapter;
use serde_json::Value;
use std::fmt;

/// What is wrong with an adapter, where, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct AdapterError {
    /// File path, adapter name or `harness.adapter`.
    pub origin: String,
    /// Line of the file, from 1, when it is known.
    pub line: Option<u64>,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub mend: String,
}

impl fmt::Display for AdapterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.origin)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}; {}", self.problem, self.mend)
    }
}

impl AdapterError {
    pub(super) fn new(origin: &str, line: Option<u64>, problem: String, mend: String) -> Self {
        Self { origin: origin.to_owned(), line, problem, mend }
    }

    pub(super) fn unknown_name(name: &str, known: &[&str]) -> Self {
        Self::new(
            name,
            None,
            "no shipped adapter has this name".to_owned(),
            format!("use one of {}, or give the path of an adapter file", known.join(", ")),
        )
    }

    pub(super) fn unreadable(path: &str, error: &std::io::Error) -> Self {
        Self::new(
            path,
            None,
            format!("cannot be read: {error}"),
            "give the path of a readable YAML file".to_owned(),
        )
    }

    fn yaml(origin: &str, error: &serde_saphyr::Error) -> Self {
        let bare = error.without_snippet();
        let line = bare.location().map(|at| at.line()).filter(|line| *line > 0);
        let (problem, mend) = match bare {
            serde_saphyr::Error::SerdeUnknownField { field, expected, .. } => {
                (format!("unknown key `{field}`"), mend_unknown(field, expected))
            }
            serde_saphyr::Error::SerdeUnknownVariant { variant, expected, .. } => {
                (format!("unknown value `{variant}`"), mend_unknown(variant, expected))
            }
            serde_saphyr::Error::SerdeMissingField { field, .. } => (
                format!("the key `{field}` is missing"),
                format!("add `{field}: …`; `polar harness list` names adapters to copy from"),
            ),
            serde_saphyr::Error::SerdeInvalidType { unexpected, expected, .. } => {
                (format!("found {unexpected}"), format!("write {expected}"))
            }
            serde_saphyr::Error::DuplicateMappingKey { key, .. } => (
                format!("the key `{}` appears twice", key.as_deref().unwrap_or("?")),
                "keep one of them".to_owned(),
            ),
            other => {
                let message = other.render();
                let first = message.lines().next().unwrap_or_default().to_owned();
                (first, "mend the YAML there".to_owned())
            }
        };
        Self::new(origin, line, problem, mend)
    }
}

impl HarnessAdapter {
    /// Reads and checks an adapter. `origin` names it in errors.
    pub fn from_yaml(origin: &str, text: &str) -> Result<Self, AdapterError> {
        let adapter: Self =
            serde_saphyr::from_str(text).map_err(|error| AdapterError::yaml(origin, &error))?;
        adapter.validate().map_err(|problem| {
            AdapterError::new(origin, line_of(text, problem.key), problem.problem, problem.mend)
        })?;
        Ok(adapter)
    }

    /// The same from JSON, as a task carries it inline.
    pub fn from_json(origin: &str, value: &Value) -> Result<Self, AdapterError> {
        let adapter: Self = serde_path_to_error::deserialize(value).map_err(|error| {
            AdapterError::new(
                origin,
                None,
                format!("at `{}`: {}", error.path(), error.inner()),
                "correct that key of the adapter".to_owned(),
            )
        })?;
        adapter
            .validate()
            .map_err(|problem| AdapterError::new(origin, None, problem.problem, problem.mend))?;
        Ok(adapter)
    }
}

/// Line of a top-level key, from 1. Top-level keys stand in the first column.
fn line_of(text: &str, key: &str) -> Option<u64> {
    let at = text.lines().position(|line| {
        line.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with(':'))
    })?;
    u64::try_from(at + 1).ok()
}

pub(super) fn mend_unknown(word: &str, expected: &[&str]) -> String {
    let list = expected.join("`, `");
    match nearest(word, expected) {
        Some(near) => format!("did you mean `{near}`? Known are `{list}`"),
        None => format!("known are `{list}`"),
    }
}

/// The known word that a typing error most likely meant.
fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let close = |candidate: &&str| edit_distance(word, candidate);
    known.iter().copied().min_by_key(close).filter(|candidate| {
        edit_distance(word, candidate) <= 2
            || (word.len() >= 3 && (candidate.contains(word) || word.contains(candidate)))
    })
}

/// Levenshtein distance over bytes; words here are short ASCII keys.
fn edit_distance(a: &str, b: &str) -> usize {
    let b = b.as_bytes();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
