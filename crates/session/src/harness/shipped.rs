//! The adapters that come with Polar.

use super::{AdapterError, HarnessAdapter};
use polar_types::HarnessSpec;
use std::path::Path;

const SHIPPED: [(&str, &str); 9] = [
    ("claude_code", include_str!("../../adapters/claude_code.yaml")),
    ("codex", include_str!("../../adapters/codex.yaml")),
    ("gemini_cli", include_str!("../../adapters/gemini_cli.yaml")),
    ("mini_swe_agent", include_str!("../../adapters/mini_swe_agent.yaml")),
    ("opencode", include_str!("../../adapters/opencode.yaml")),
    ("openhands", include_str!("../../adapters/openhands.yaml")),
    ("pi", include_str!("../../adapters/pi.yaml")),
    ("qwen_code", include_str!("../../adapters/qwen_code.yaml")),
    ("shell", include_str!("../../adapters/shell.yaml")),
];

impl HarnessAdapter {
    /// Names of the shipped adapters, sorted.
    pub fn names() -> Vec<&'static str> {
        SHIPPED.iter().map(|(name, _)| *name).collect()
    }

    /// All shipped adapters, by name.
    pub fn list() -> Result<Vec<Self>, AdapterError> {
        SHIPPED.iter().map(|(name, text)| Self::from_yaml(name, text)).collect()
    }

    /// The text of a shipped adapter, to start one's own from.
    pub fn shipped_text(name: &str) -> Option<&'static str> {
        SHIPPED.iter().find(|(shipped, _)| *shipped == name).map(|(_, text)| *text)
    }

    /// A shipped adapter.
    pub fn shipped(name: &str) -> Result<Self, AdapterError> {
        match Self::shipped_text(name) {
            Some(text) => Self::from_yaml(name, text),
            None => Err(AdapterError::unknown_name(name, &Self::names())),
        }
    }

    /// An adapter from a file of one's own.
    pub fn from_file(path: &Path) -> Result<Self, AdapterError> {
        let origin = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Self::from_yaml(&origin, &text),
            Err(error) => Err(AdapterError::unreadable(&origin, &error)),
        }
    }

    /// The adapter a task asks for: the one it brings, or the shipped one of that name.
    pub fn of_spec(spec: &HarnessSpec) -> Result<Self, AdapterError> {
        let Some(inline) = &spec.adapter else { return Self::shipped(&spec.name) };
        let adapter = Self::from_json("harness.adapter", inline)?;
        if adapter.name == spec.name {
            Ok(adapter)
        } else {
            Err(AdapterError::new(
                "harness.adapter",
                None,
                format!("it is called {:?} while harness.name says {:?}", adapter.name, spec.name),
                "give both the same name".to_owned(),
            ))
        }
    }
}
