//! The fields of a generation request that the simulator acts on, with vLLM's checks.
//! Unknown fields are ignored, as vLLM ignores them.

use super::error::ApiError;
use http::{HeaderMap, header};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Fields that chat and text completions share.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct SamplingFields {
    pub model: Option<String>,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    pub max_tokens: Option<i64>,
    pub max_completion_tokens: Option<i64>,
    pub min_tokens: Option<usize>,
    pub n: Option<i64>,
    pub stop: Option<OneOrMany>,
    pub stop_token_ids: Option<Vec<u32>>,
    pub ignore_eos: Option<bool>,
    pub include_stop_str_in_output: Option<bool>,
    pub skip_special_tokens: Option<bool>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub seed: Option<i64>,
    /// Biases nothing: its ids are looked at, which is how a client learns the vocabulary's size.
    pub logit_bias: Option<Map<String, Value>>,
    pub return_token_ids: Option<bool>,
    pub return_tokens_as_token_ids: Option<bool>,
    pub prompt_logprobs: Option<i64>,
    pub stream_interval: Option<usize>,
    pub cache_salt: Option<String>,
    pub request_id: Option<String>,
}

/// Options of a streamed reply.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(super) struct StreamOptions {
    #[serde(default)]
    pub include_usage: bool,
    #[serde(default)]
    pub continuous_usage_stats: bool,
}

/// `"x"` or `["x", "y"]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// Fields of chat completions alone.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct ChatFields {
    pub messages: Option<Value>,
    pub tools: Option<Vec<Value>>,
    pub tool_choice: Option<Value>,
    pub parallel_tool_calls: Option<bool>,
    pub logprobs: Option<bool>,
    pub top_logprobs: Option<i64>,
    pub return_prompt_text: Option<bool>,
    pub add_generation_prompt: Option<bool>,
    pub continue_final_message: Option<bool>,
    pub include_reasoning: Option<bool>,
    pub chat_template_kwargs: Option<Map<String, Value>>,
    pub reasoning_effort: Option<String>,
    pub kv_transfer_params: Option<Value>,
}

/// Which tool the reply must call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ToolChoice {
    /// No tools, or none wanted.
    None,
    Auto,
    Required,
    Named(String),
}

/// Reads any of the field sets from a body.
pub(super) fn fields<'b, T: Deserialize<'b>>(body: &'b Value) -> Result<T, ApiError> {
    T::deserialize(body).map_err(|error| ApiError::validation(&error.to_string(), None))
}

/// Reads a request body that must be declared as JSON, as vLLM wants it.
pub(super) fn body(headers: &HeaderMap, bytes: &[u8]) -> Result<Value, ApiError> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let media = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    if !media.eq_ignore_ascii_case("application/json") {
        return Err(ApiError::not_json());
    }
    parsed(bytes)
}

/// Reads a request body, whatever it is declared as.
pub(super) fn parsed(bytes: &[u8]) -> Result<Value, ApiError> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| {
        let place = error.column().to_string();
        ApiError::validation(&format!("JSON decode error: {error}"), Some(&place))
    })?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(ApiError::validation("Input should be a valid dictionary", None))
    }
}

impl SamplingFields {
    /// Checks what no other rule covers.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        let range = |holds: bool, name: &str, rule: &str, got: String| {
            let message = format!("{name} must be {rule}, got {got}.");
            if holds { Ok(()) } else { Err(ApiError::bad_request(message).of_value(name, got)) }
        };
        if let Some(n) = self.n.filter(|n| *n < 1) {
            return Err(ApiError::bad_request(format!("n must be at least 1, got {n}.")));
        }
        let asked = self.max_completion_tokens.or(self.max_tokens);
        if let Some(asked) = asked {
            range(asked >= 1, "max_tokens", "at least 1", asked.to_string())?;
        }
        if let Some(t) = self.temperature {
            range(t >= 0.0, "temperature", "non-negative", format!("{t:?}"))?;
        }
        if let Some(p) = self.top_p {
            range(p > 0.0 && p <= 1.0, "top_p", "in (0, 1]", format!("{p:?}"))?;
        }
        if self.stream_options.is_some() && !self.streams() {
            let message = "Stream options can only be defined when `stream=True`.";
            return Err(ApiError::bad_request(message).of("stream_options"));
        }
        match self.prompt_logprobs {
            Some(asked) if asked < -1 => {
                let message = "`prompt_logprobs` must be a positive value or -1.";
                Err(ApiError::bad_request(message).of_value("prompt_logprobs", asked))
            }
            Some(asked) if self.streams() && asked != 0 => {
                let message = "`prompt_logprobs` are not available when `stream=True`.";
                Err(ApiError::bad_request(message).of("prompt_logprobs"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    pub(super) fn choices(&self) -> usize {
        usize::try_from(self.n.unwrap_or(1)).unwrap_or(1)
    }

    pub(super) fn stop_strings(&self) -> Vec<String> {
        match &self.stop {
            Some(OneOrMany::One(stop)) => vec![stop.clone()],
            Some(OneOrMany::Many(stops)) => stops.clone(),
            None => Vec::new(),
        }
    }
}

impl ChatFields {
    pub(super) fn check(&self) -> Result<(), ApiError> {
        match &self.messages {
            None => return Err(ApiError::validation("Field required", Some("messages"))),
            Some(Value::Array(_)) => {}
            Some(_) => {
                let problem = "Input should be a valid list";
                return Err(ApiError::validation(problem, Some("messages")));
            }
        }
        if self.tools.as_ref().is_some_and(Vec::is_empty) {
            let message = "`tools` must not be an empty array. Either provide at least one tool or \
                           omit the field entirely.";
            return Err(ApiError::bad_request(message).of("tools"));
        }
        if let Some(top) = self.top_logprobs.filter(|top| *top < -1) {
            let message = "`top_logprobs` must be a positive value or -1.";
            return Err(ApiError::bad_request(message).of_value("top_logprobs", top));
        }
        if self.top_logprobs.is_some_and(|top| top != 0) && !self.logprobs.unwrap_or(false) {
            let message = "when using `top_logprobs`, `logprobs` must be set to true.";
            return Err(ApiError::bad_request(message).of("top_logprobs"));
        }
        if self.continue_final_message == Some(true) && self.add_generation_prompt != Some(false) {
            let message =
                "Cannot set both `continue_final_message` and `add_generation_prompt` to True.";
            return Err(ApiError::bad_request(message));
        }
        self.tool_choice().map(|_| ())
    }

    pub(super) fn tool_choice(&self) -> Result<ToolChoice, ApiError> {
        let refuse = |message: &str| Err(ApiError::bad_request(message).of("tool_choice"));
        let choice = self.tool_choice.as_ref().filter(|choice| !choice.is_null());
        let Some(tools) = &self.tools else {
            return match choice {
                None => Ok(ToolChoice::None),
                Some(choice) if choice == "none" => Ok(ToolChoice::None),
                Some(_) => refuse("When using `tool_choice`, `tools` must be set."),
            };
        };
        match choice {
            None => Ok(ToolChoice::Auto),
            Some(Value::String(word)) => match word.as_str() {
                "none" => Ok(ToolChoice::None),
                "auto" => Ok(ToolChoice::Auto),
                "required" => Ok(ToolChoice::Required),
                other => refuse(&format!(
                    "Invalid value for `tool_choice`: {other}! Only named tools, \"none\", \"auto\" or \
                     \"required\" are supported."
                )),
            },
            Some(choice) => {
                let name = choice.pointer("/function/name").and_then(Value::as_str);
                let named =
                    |tool: &Value| tool.pointer("/function/name").and_then(Value::as_str) == name;
                match name {
                    Some(name) if tools.iter().any(named) => Ok(ToolChoice::Named(name.to_owned())),
                    Some(_) => refuse(
                        "The tool specified in `tool_choice` does not match any of the specified `tools`",
                    ),
                    None => refuse("Expected field `name` in `function` in `tool_choice`!"),
                }
            }
        }
    }

    /// Takes reasoning under its older name too.
    pub(super) fn accept_reasoning_content(&mut self) {
        let messages = self.messages.as_mut().and_then(Value::as_array_mut);
        for message in messages.into_iter().flatten().filter_map(Value::as_object_mut) {
            let older = message.remove("reasoning_content").filter(|older| !older.is_null());
            if let Some(older) = older
                && message.get("reasoning").is_none_or(Value::is_null)
            {
                message.insert("reasoning".to_owned(), older);
            }
        }
    }

    /// Leaves out reasoning under its older name, as `/tokenize` does.
    pub(super) fn ignore_reasoning_content(&mut self) {
        let messages = self.messages.as_mut().and_then(Value::as_array_mut);
        for message in messages.into_iter().flatten().filter_map(Value::as_object_mut) {
            message.remove("reasoning_content");
        }
    }

    /// What the template is told: the server's `defaults` under the request's own.
    pub(super) fn template_options(&self, defaults: &Map<String, Value>) -> Map<String, Value> {
        let mut options = defaults.clone();
        if let Some(effort) = &self.reasoning_effort {
            options.insert("enable_thinking".to_owned(), (effort != "none").into());
        }
        options.extend(self.chat_template_kwargs.clone().unwrap_or_default());
        options
    }

    pub(super) fn messages(&self) -> &[Value] {
        self.messages.as_ref().and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// Ids that replace the rendered prompt.
    pub(super) fn own_prompt(&self) -> Option<&Vec<Value>> {
        self.kv_transfer_params.as_ref()?.get("prompt_token_ids")?.as_array()
    }
}
