//! The client's own shell as a function.

use crate::Tool;
use polar_wire::responses::ShellAction;
use serde_json::{Map, json};

/// The name the model calls.
pub(super) const NAME: &str = "local_shell";

/// The function that stands for the shell.
pub(super) fn tool() -> Tool {
    let parameters = json!({
        "type": "object",
        "properties": {
            "command": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Program and arguments.",
            },
            "env": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "description": "Environment variables to set.",
            },
            "timeout_ms": {
                "type": "integer",
                "description": "Longest the command may take, in milliseconds.",
            },
            "user": {"type": "string", "description": "User to run the command as."},
            "working_directory": {"type": "string", "description": "Folder to run it in."},
        },
        "required": ["command"],
        "additionalProperties": false,
    });
    Tool {
        name: NAME.to_owned(),
        description: Some("Runs a command on the user's machine.".to_owned()),
        parameters,
        rest: Map::new(),
    }
}

/// What to run; none where the arguments do not say it.
pub(super) fn action(arguments: &str) -> Option<ShellAction> {
    serde_json::from_str(arguments).ok()
}

/// The arguments of a call, where their own spelling is not known.
pub(super) fn arguments(action: &ShellAction) -> String {
    let mut said = Map::new();
    said.insert("command".into(), json!(action.command));
    if !action.env.is_empty() {
        said.insert("env".into(), json!(action.env));
    }
    for (name, value) in [
        ("timeout_ms", json!(action.timeout_ms)),
        ("user", json!(action.user)),
        ("working_directory", json!(action.working_directory)),
    ] {
        if !value.is_null() {
            said.insert(name.into(), value);
        }
    }
    serde_json::Value::Object(said).to_string()
}
