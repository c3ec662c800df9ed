//! The simulated model's chat template, over messages prepared the way vLLM prepares them.
//!
//! Engine parity matters here: `arguments` strings become objects, tools lose keys the
//! engine doesn't know, text parts are joined by newlines.

use crate::SimulatorError;
use polar_tokens::template::{
    ChatTemplate as Template, CivilDateTime, Preparation, RenderInput, TemplateFiles,
};
use serde_json::{Map, Value};

pub(crate) const TEMPLATE: &str = include_str!("../assets/chat_template.jinja");

/// The chat template of the simulated model.
#[derive(Debug)]
pub struct ChatTemplate {
    template: Template,
    preparation: Preparation,
}

impl ChatTemplate {
    /// Loads the shipped template.
    pub fn load() -> Result<Self, SimulatorError> {
        Self::load_for(Preparation::Vllm)
    }

    /// The same over messages prepared as another engine does.
    pub fn load_for(preparation: Preparation) -> Result<Self, SimulatorError> {
        let templates = vec![("default".to_owned(), TEMPLATE.to_owned())];
        let template = Template::new(TemplateFiles { templates, specials: Map::new() })?;
        Ok(Self { template, preparation })
    }

    /// The prompt text. `options` are the request's `chat_template_kwargs`.
    pub fn render(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        add_generation_prompt: bool,
        options: &Map<String, Value>,
    ) -> Result<String, SimulatorError> {
        let messages = self.preparation.messages(messages);
        let tools = tools.map(|tools| self.preparation.tools(tools));
        // The shipped template reads no clock.
        let now = CivilDateTime::default();
        let input = RenderInput {
            messages: &messages,
            tools: tools.as_deref(),
            add_generation_prompt,
            options,
            now,
        };
        Ok(self.template.render(&input)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(messages: &Value, tools: Option<&Value>, options: &Value) -> String {
        let template = ChatTemplate::load().unwrap();
        let tools = tools.map(|tools| tools.as_array().unwrap().as_slice());
        template
            .render(messages.as_array().unwrap(), tools, true, options.as_object().unwrap())
            .unwrap()
    }

    #[test]
    fn plain_turns() {
        let messages = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "\n\nc", "reasoning": "old"},
            {"role": "user", "content": "d"},
        ]);
        let text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n\
            <|im_start|>assistant\nc<|im_end|>\n<|im_start|>user\nd<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(render(&messages, None, &json!({})), text);
        let kept = text.replace("assistant\nc", "assistant\n<think>\nold\n</think>\n\nc");
        assert_eq!(render(&messages, None, &json!({"keep_reasoning": true})), kept);
        let closed = format!("{text}<think>\n\n</think>\n\n");
        assert_eq!(render(&messages, None, &json!({"enable_thinking": false})), closed);
    }

    #[test]
    fn history_is_mended_as_in_vllm() {
        let call = |arguments: Value| {
            json!([
                {"role": "system", "content": [
                    {"type": "text", "text": "x-anthropic-billing-header: v=1;"},
                    {"type": "text", "text": "Rules."},
                ]},
                {"role": "user", "content": "q"},
                {"role": "assistant", "reasoning": "hm", "tool_calls": [
                    {"type": "function", "function": {"name": "f", "arguments": arguments}},
                ]},
            ])
        };
        for broken in [json!("{\"a\": "), json!("[1]"), json!("7"), json!(""), json!(null)] {
            let text = render(&call(broken), None, &json!({}));
            assert!(text.starts_with("<|im_start|>system\nRules.<|im_end|>"), "{text}");
            let turn = "assistant\n<think>\nhm\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call><|im_end|>";
            assert!(text.contains(turn), "{text}");
        }
        let text = render(&call(json!({"a": 1})), None, &json!({}));
        assert!(text.contains("\"arguments\": {\"a\": 1}}"));
    }

    #[test]
    fn tools_calls_and_results() {
        let messages = json!([
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": null, "reasoning": "\nhm\n", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"b\":1,\"a\":1e-7}"}},
                {"id": "2", "type": "function", "function": {"name": "g", "arguments": ""}},
            ]},
            {"role": "tool", "tool_call_id": "1", "content": "one"},
            {"role": "tool", "tool_call_id": "2", "content": "two"},
        ]);
        let tools = json!([{
            "cache_control": {}, "type": "function",
            "function": {"parameters": {"type": "object"}, "strict": true, "name": "f", "description": "é"},
        }, {"type": "function", "function": {"name": "bare"}}]);
        let text = render(&messages, Some(&tools), &json!({}));
        assert!(text.contains(
            "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"é\", \
             \"parameters\": {\"type\": \"object\"}, \"strict\": true}}\n\
             {\"type\": \"function\", \"function\": {\"name\": \"bare\", \"description\": null, \
             \"parameters\": null}}\n</tools>"
        ));
        assert!(text.ends_with(
            "<|im_start|>assistant\n<think>\nhm\n</think>\n\n\
             <tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": 1e-07}}\n</tool_call>\n\
             <tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call><|im_end|>\n\
             <|im_start|>user\n<tool_response>\none\n</tool_response>\n\
             <tool_response>\ntwo\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        ), "{text}");
    }
}
