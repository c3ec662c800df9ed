//! A line of OpenAI messages for each trace, for supervised fine-tuning.

use crate::{ExportError, Row, RowWriter};
use serde_json::{Value, json};
use std::io::Write;

/// Writes JSON lines.
pub struct MessagesWriter<W> {
    out: W,
}

impl<W: Write> MessagesWriter<W> {
    /// Writes to `out`.
    pub fn new(out: W) -> Self {
        Self { out }
    }
}

impl<W: Write> RowWriter for MessagesWriter<W> {
    fn write(&mut self, row: Row<'_>) -> Result<(), ExportError> {
        let trace = row.trace;
        let said = trace.prompt_messages.iter().chain(&trace.response_messages);
        // Text, because schemas of tools have no common shape that a table could have.
        let tools = trace.tools.as_ref().map(serde_json::to_string).transpose()?;
        let line = json!({
            "messages": said.map(message).collect::<Vec<_>>(),
            "tools": tools,
            "task_id": row.trajectory.task_id,
            "group_id": trace.group_id,
            "rollout_id": trace.rollout_id,
            "trace_index": row.index,
            "role": trace.lineage.role,
            "reward": trace.reward,
            "finish_reason": trace.finish_reason,
        });
        serde_json::to_writer(&mut self.out, &line)?;
        self.out.write_all(b"\n")?;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), ExportError> {
        Ok(self.out.flush()?)
    }
}

/// The message, with content that is made of texts alone as one text: a column has one type.
fn message(message: &Value) -> Value {
    let mut message = message.clone();
    if let Some(text) = message["content"].as_array().and_then(|parts| joined(parts)) {
        message["content"] = Value::String(text);
    }
    message
}

fn joined(parts: &[Value]) -> Option<String> {
    parts
        .iter()
        .map(|part| part["text"].as_str().filter(|_| part["type"] == "text"))
        .collect::<Option<Vec<_>>>()
        .map(|texts| texts.concat())
}
