//! A line of ATIF, Harbor's Agent Trajectory Interchange Format, for each trace.
//!
//! Written by its version 1.4, whose objects have fixed fields and an `extra` each. What it has
//! no field for is there: mask, weight versions, sampling settings and lineage.

use crate::{ExportError, Row, RowWriter};
use polar_types::Trace;
use serde_json::{Map, Value, json};
use std::io::Write;

/// The version of the format that is written.
const VERSION: &str = "ATIF-v1.4";

/// Writes JSON lines.
pub struct AtifWriter<W> {
    out: W,
    agent: String,
}

impl<W: Write> AtifWriter<W> {
    /// Writes to `out` what an agent of this name did.
    pub fn new(out: W, agent: impl Into<String>) -> Self {
        Self { out, agent: agent.into() }
    }
}

impl<W: Write> RowWriter for AtifWriter<W> {
    fn write(&mut self, row: Row<'_>) -> Result<(), ExportError> {
        let document = document(row, &self.agent)?;
        serde_json::to_writer(&mut self.out, &document)?;
        self.out.write_all(b"\n")?;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), ExportError> {
        Ok(self.out.flush()?)
    }
}

fn document(row: Row<'_>, agent: &str) -> Result<Value, ExportError> {
    let trace = row.trace;
    let steps = steps(trace);
    let count = steps.len();
    Ok(json!({
        "schema_version": VERSION,
        "session_id": trace.rollout_id,
        // Its version is not kept with what it did.
        "agent": { "name": agent, "version": "unknown" },
        "steps": steps,
        "final_metrics": {
            "total_completion_tokens": row.trained(),
            "total_steps": count,
        },
        "extra": {
            "task_id": row.trajectory.task_id,
            "group_id": trace.group_id,
            "trace_index": row.index,
            "reward": trace.reward,
            "turn_scores": trace.turn_scores,
            "siblings": trace.siblings,
            "loss_weight": trace.loss_weight,
            "lineage": serde_json::to_value(&trace.lineage)?,
            "calls": trace.calls,
            "finish_reason": trace.finish_reason,
            "sampling": trace.sampling,
            "tools": trace.tools,
            "prompt_ids": trace.prompt_ids,
            "response_ids": trace.response_ids,
            "loss_mask": trace.loss_mask,
            "response_logprobs": trace.response_logprobs,
            "weight_versions": serde_json::to_value(&trace.weight_versions)?,
        },
    }))
}

fn steps(trace: &Trace) -> Vec<Value> {
    let mut steps: Vec<Map<String, Value>> = Vec::new();
    for message in &trace.prompt_messages {
        add(&mut steps, message, None);
    }
    let is_agent = |message: &&Value| message["role"] == "assistant";
    let turns = trace.response_messages.iter().filter(is_agent).count();
    // Without one turn for each call it is not known which call said what.
    let mut calls = match turns == trace.calls.len() {
        true => metrics(trace).into_iter(),
        false => Vec::new().into_iter(),
    };
    for message in &trace.response_messages {
        let metrics = if is_agent(&message) { calls.next() } else { None };
        add(&mut steps, message, metrics);
    }
    for (index, step) in steps.iter_mut().enumerate() {
        step.insert("step_id".to_owned(), json!(index + 1));
    }
    steps.into_iter().map(Value::Object).collect()
}

/// Adds a message as a step; a tool's result goes to the step that called the tool.
fn add(steps: &mut Vec<Map<String, Value>>, message: &Value, metrics: Option<Value>) {
    let role = message["role"].as_str().unwrap_or_default();
    if role == "tool"
        && let Some(last) = steps.last_mut().filter(|step| step["source"] == "agent")
    {
        observe(last, message);
        return;
    }
    let source = match role {
        "assistant" => "agent",
        "system" | "developer" => "system",
        _ => "user",
    };
    let mut step = Map::new();
    step.insert("step_id".to_owned(), Value::Null);
    step.insert("source".to_owned(), json!(source));
    step.insert("message".to_owned(), json!(text(&message["content"])));
    if source == "agent" {
        if let Some(reasoning) = message["reasoning_content"].as_str() {
            step.insert("reasoning_content".to_owned(), json!(reasoning));
        }
        let calls: Vec<Value> =
            message["tool_calls"].as_array().into_iter().flatten().map(tool_call).collect();
        if !calls.is_empty() {
            step.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        if let Some(metrics) = metrics {
            step.insert("metrics".to_owned(), metrics);
        }
    }
    steps.push(step);
}

fn observe(step: &mut Map<String, Value>, message: &Value) {
    let id = &message["tool_call_id"];
    let calls = step.get("tool_calls").and_then(Value::as_array);
    let is_known = calls.into_iter().flatten().any(|call| call["tool_call_id"] == *id);
    let mut result = json!({ "content": text(&message["content"]) });
    if is_known {
        result["source_call_id"] = id.clone();
    }
    let observation = step.entry("observation").or_insert_with(|| json!({ "results": [] }));
    if let Some(results) = observation["results"].as_array_mut() {
        results.push(result);
    }
}

/// Arguments that are no object are kept as the text that the model wrote.
fn tool_call(call: &Value) -> Value {
    let arguments = &call["function"]["arguments"];
    let read = match arguments {
        Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
        other => other.clone(),
    };
    json!({
        "tool_call_id": call["id"],
        "function_name": call["function"]["name"],
        "arguments": if read.is_object() { read } else { json!({ "_text": arguments }) },
    })
}

fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Array(parts) => {
            let text = |part: &Value| match part["text"].as_str() {
                Some(text) => text.to_owned(),
                None => part.to_string(),
            };
            parts.iter().map(text).collect::<Vec<_>>().join("")
        }
        other => other.to_string(),
    }
}

/// What each call sampled. Nothing where the ends of calls are not known.
fn metrics(trace: &Trace) -> Vec<Value> {
    let mut start = 0;
    trace
        .turn_ends
        .iter()
        .map(|end| {
            let sampled = trace.weight_versions.iter().flat_map(|span| {
                (span.start.max(start)..span.end.min(*end)).map(|place| place as usize)
            });
            let places: Vec<usize> = sampled.collect();
            start = *end;
            let ids: Vec<_> = places.iter().filter_map(|at| trace.response_ids.get(*at)).collect();
            let logprobs: Option<Vec<f32>> = places
                .iter()
                .map(|at| trace.response_logprobs.get(*at).copied().flatten())
                .collect();
            let mut metrics = json!({
                "completion_tokens": ids.len(),
                "completion_token_ids": ids,
            });
            // The format's list has no room for a logprob that is missing.
            if let Some(logprobs) = logprobs {
                metrics["logprobs"] = json!(logprobs);
            }
            metrics
        })
        .collect()
}
