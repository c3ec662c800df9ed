//! Templates in the manner of model families, written for these tests, and a tokenizer that
//! knows their marks.

use jiff::civil::DateTime;
use polar_tokens::prompt::{Conversation, PromptRenderer};
use polar_tokens::template::{ChatTemplate, Preparation, TemplateFiles};
use polar_tokens::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use std::sync::{Arc, LazyLock};

/// How a family writes conversations.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    template: &'static str,
    /// Tokens that end a turn of the model.
    pub(crate) stops: &'static [&'static str],
    /// A turn of the model as it would sample it, from text and calls (name, arguments).
    pub(crate) turn: fn(&str, &[(&str, &str)]) -> String,
}

/// ChatML: one mark ends every turn, results stand in one turn of the user's.
pub(crate) const CHATML: Family = Family {
    name: "chatml",
    template: include_str!("../../../simulator/assets/chat_template.jinja"),
    stops: &["<|im_end|>", "<|endoftext|>"],
    turn: |text, calls| {
        let calls = calls.iter().map(|(name, arguments)| {
            format!(r#"<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>"#)
        });
        let parts = (!text.is_empty()).then(|| text.to_owned()).into_iter().chain(calls);
        parts
            .map(|part| part.replace("<tool_call>", "<tool_call>\n").replace("</tool", "\n</tool"))
            .collect::<Vec<_>>()
            .join("\n")
            + "<|im_end|>"
    },
};

/// GLM: a turn has no end of its own, the mark of the next one stops the model.
pub(crate) const GLM: Family = Family {
    name: "glm",
    template: "[gMASK]{% if tools %}<|system|>\n# Tools{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}\
        {% for m in messages %}{% if m.role == 'tool' %}\
        {% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|observation|>{% endif %}\
        {{ '\n' }}<tool_response>\n{{ m.content }}\n</tool_response>\
        {% elif m.role == 'assistant' %}<|assistant|>\n{{ m.content }}{% for c in m.tool_calls or [] %}\
        {{ '\n' }}<tool_call>{{ c.function.name }}{{ c.function.arguments | tojson }}</tool_call>{% endfor %}\
        {% else %}<|{{ m.role }}|>\n{{ m.content }}{% endif %}{% endfor %}\
        {% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    stops: &["<|user|>", "<|observation|>", "<|endoftext|>"],
    turn: |text, calls| {
        let mut turn = text.to_owned();
        for (name, arguments) in calls {
            turn += &format!("\n<tool_call>{name}{arguments}</tool_call>");
        }
        turn + if calls.is_empty() { "<|user|>" } else { "<|observation|>" }
    },
};

/// gpt-oss: the model ends with one mark, and its earlier turns with another.
pub(crate) const HARMONY: Family = Family {
    name: "harmony",
    template: "{% for m in messages %}{% if m.role == 'assistant' %}\
        {% if m.tool_calls %}{% for c in m.tool_calls %}<|start|>assistant to={{ c.function.name }}\
        <|message|>{{ c.function.arguments | tojson }}<|call|>{% endfor %}\
        {% elif loop.last and not add_generation_prompt %}<|start|>assistant<|message|>{{ m.content }}<|return|>\
        {% else %}<|start|>assistant<|message|>{{ m.content }}<|end|>{% endif %}\
        {% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}\
        {% if add_generation_prompt %}<|start|>assistant{% endif %}",
    stops: &["<|return|>", "<|call|>"],
    turn: |text, calls| match calls {
        [(name, arguments)] => format!(" to={name}<|message|>{arguments}<|call|>"),
        _ => format!("<|message|>{text}<|return|>"),
    },
};

/// Mistral: the tools stand before the last question.
pub(crate) const MISTRAL: Family = Family {
    name: "mistral",
    template: "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}<s>\
        {% for m in messages %}{% if m.role == 'user' %}\
        {% if tools and m == users[-1] %}[AVAILABLE_TOOLS]{% for t in tools %}{{ t.function.name }} {% endfor %}[/AVAILABLE_TOOLS]{% endif %}\
        [INST]{{ m.content }}[/INST]{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]\
        {% elif m.role == 'assistant' %}{{ m.content }}{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}\
        {{ c.function.arguments | tojson }}{% endfor %}</s>{% endif %}{% endfor %}",
    stops: &["</s>"],
    turn: |text, calls| {
        let calls = calls.iter().map(|(name, arguments)| format!("[TOOL_CALLS]{name}{arguments}"));
        text.to_owned() + &calls.collect::<String>() + "</s>"
    },
};

/// A template that takes conversations of its own kind only.
pub(crate) const STRICT: Family = Family {
    name: "strict",
    template: "{% for m in messages %}{% if m.role == 'user' and '?' not in m.content %}\
        {{ raise_exception('only questions') }}{% endif %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>\
        {% endfor %}{% if add_generation_prompt %}<|start|>assistant<|message|>{% endif %}",
    stops: &["<|end|>"],
    turn: |text, _| format!("{text}<|end|>"),
};

/// A template that takes short conversations only.
pub(crate) const SHORT: Family = Family {
    name: "short",
    template: "{% if messages | length > 8 %}{{ raise_exception('too long') }}{% endif %}{% for m in messages %}\
        <|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}\
        {% if add_generation_prompt %}<|start|>assistant<|message|>{% endif %}",
    stops: &["<|end|>"],
    turn: |text, _| format!("{text}<|end|>"),
};

/// SmolLM2: every message is its text, and calls are not written.
pub(crate) const PLAIN: Family = Family {
    name: "plain",
    template: "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|start|>assistant<|message|>{% endif %}",
    stops: &["<|end|>"],
    turn: |text, _| format!("{text}<|end|>"),
};

/// Command R: calls and results are numbered through the conversation.
pub(crate) const COUNTING: Family = Family {
    name: "counting",
    template: "{% set n = namespace(calls=0, results=0) %}{% for m in messages %}<|start|>{{ m.role }}<|message|>\
        {% if m.role == 'tool' %}{{ n.results }}: {% set n.results = n.results + 1 %}{% endif %}{{ m.content }}\
        {% for c in m.tool_calls or [] %}{{ n.calls }}: {{ c.function.name }}{{ c.function.arguments | tojson }}\
        {% set n.calls = n.calls + 1 %}{% endfor %}<|end|>{% endfor %}\
        {% if add_generation_prompt %}<|start|>assistant<|message|>{% endif %}",
    stops: &["<|end|>"],
    turn: |text, calls| {
        let calls = calls.iter().enumerate();
        let calls = calls.map(|(number, (name, arguments))| format!("{number}: {name}{arguments}"));
        text.to_owned() + &calls.collect::<String>() + "<|end|>"
    },
};

pub(crate) const FAMILIES: [&Family; 6] = [&CHATML, &GLM, &HARMONY, &MISTRAL, &PLAIN, &COUNTING];

const MARKS: [&str; 18] = [
    "[gMASK]",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|call|>",
    "<|return|>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[AVAILABLE_TOOLS]",
];

static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let json = include_bytes!("../../../simulator/assets/tokenizer.json");
    let mut file: Value = serde_json::from_slice(json).unwrap();
    let added = file["added_tokens"].as_array_mut().unwrap();
    for (number, mark) in MARKS.iter().enumerate() {
        added.push(json!({
            "id": 4096 + number, "content": mark, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true,
        }));
    }
    Arc::new(Tokenizer::from_json(file.to_string().as_bytes()).unwrap())
});

pub(crate) fn tokenizer() -> &'static Arc<Tokenizer> {
    &TOKENIZER
}

impl Family {
    pub(crate) fn renderer(&self) -> PromptRenderer {
        let templates = vec![("default".to_owned(), self.template.to_owned())];
        let template =
            ChatTemplate::new(TemplateFiles { templates, specials: Map::new() }).unwrap();
        let stops = self.stops.iter().map(|mark| self.mark(mark)).collect();
        PromptRenderer::new(template, tokenizer().clone(), Preparation::Vllm, stops)
    }

    pub(crate) fn mark(&self, mark: &str) -> u32 {
        tokenizer().id_of(mark).unwrap()
    }

    /// Ids of a turn as the model would sample it.
    pub(crate) fn sampled(&self, text: &str, calls: &[(&str, &str)]) -> Vec<u32> {
        tokenizer().encode(&(self.turn)(text, calls)).unwrap()
    }
}

/// A conversation and what it is held with.
#[derive(Clone, Default)]
pub(crate) struct Talk {
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Vec<Value>,
    pub(crate) options: Map<String, Value>,
}

impl Talk {
    pub(crate) fn of(messages: &[Value]) -> Self {
        Self { messages: messages.to_vec(), ..Self::default() }
    }

    pub(crate) fn with_tools(mut self) -> Self {
        self.tools = vec![json!({"type": "function", "function": {
            "name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}},
        }})];
        self
    }

    pub(crate) fn say(&mut self, role: &str, content: &str) {
        self.messages.push(json!({"role": role, "content": content}));
    }

    pub(crate) fn conversation(&self) -> Conversation<'_> {
        let (messages, tools) = (&self.messages, &self.tools);
        Conversation { messages, tools, options: &self.options, now: DateTime::default() }
    }
}

/// A turn of the model's as a harness sends it back.
pub(crate) fn turn(text: &str, calls: &[(&str, &str)]) -> Value {
    let mut turn = json!({"role": "assistant", "content": text});
    if !calls.is_empty() {
        let calls = calls.iter().enumerate().map(|(number, (name, arguments))| {
            json!({"id": format!("call_{number}"), "type": "function",
                "function": {"name": name, "arguments": arguments}})
        });
        turn["tool_calls"] = calls.collect();
    }
    turn
}

pub(crate) fn result(number: usize, content: &str) -> Value {
    json!({"role": "tool", "tool_call_id": format!("call_{number}"), "content": content})
}
