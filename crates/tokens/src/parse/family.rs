//! Which format a model writes: by name as engines call their parsers, by its chat template, or by the
//! model's name.

use super::deepseek_kimi::{DeepseekKimi, Layout};
use super::glm::Glm;
use super::harmony::Harmony;
use super::hermes::Hermes;
use super::llama::Llama;
use super::mistral::Mistral;
use super::qwen_coder::QwenCoder;
use super::thinking::{THINK, THINK_BRACKETS, Thinking};
use super::{PlainText, ReplyStart, TextParser, ToolSchemas};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::str::FromStr;

/// How a model writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolFormat {
    /// JSON between `<tool_call>` tags: Hermes, Qwen2.5, Qwen3.
    Hermes,
    /// XML with a tag for each parameter: Qwen3-Coder, Qwen3.5.
    Qwen3Coder,
    /// `<arg_key>` and `<arg_value>`: GLM 4.5 and later.
    Glm45,
    /// Special tokens and a fence: DeepSeek V3 and R1.
    DeepseekV3,
    /// Special tokens: DeepSeek V3.1.
    DeepseekV31,
    /// Special tokens and ids: Kimi K2.
    KimiK2,
    /// Harmony: gpt-oss.
    Openai,
    /// A JSON object as the whole reply: Llama 3.1 to 3.3.
    Llama3Json,
    /// Behind `[TOOL_CALLS]`: Mistral.
    Mistral,
    /// None: what looks like a call is text.
    None,
}

/// How a model writes its reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningFormat {
    /// `<think>`, which the prompt opens or the model: Qwen3, QwQ.
    Qwen3,
    /// `<think>`, which the prompt opens: DeepSeek R1 and what was distilled from it.
    DeepseekR1,
    /// `<think>` where the prompt opens it: DeepSeek V3.1.
    DeepseekV3,
    /// `<think>`, by the model up to 4.6, by the prompt after: GLM.
    Glm45,
    /// `<think>`: Kimi K2 Thinking.
    KimiK2,
    /// The analysis channel: gpt-oss.
    GptOss,
    /// `[THINK]`: Magistral, Ministral.
    Mistral,
    /// None: everything is text.
    None,
}

/// How a model writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ParserFamily {
    /// Its tool calls.
    pub tools: ToolFormat,
    /// Its reasoning.
    pub reasoning: ReasoningFormat,
}

/// A parser was asked for that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no {kind} parser `{name}`; the parsers are {}", known.join(", "))]
pub struct UnknownParser {
    kind: &'static str,
    name: String,
    known: Vec<&'static str>,
}

const TOOL_NAMES: &[(&str, ToolFormat)] = &[
    ("hermes", ToolFormat::Hermes),
    ("qwen3_coder", ToolFormat::Qwen3Coder),
    ("glm45", ToolFormat::Glm45),
    ("deepseek_v3", ToolFormat::DeepseekV3),
    ("deepseek_v31", ToolFormat::DeepseekV31),
    ("kimi_k2", ToolFormat::KimiK2),
    ("openai", ToolFormat::Openai),
    ("llama3_json", ToolFormat::Llama3Json),
    ("mistral", ToolFormat::Mistral),
    ("none", ToolFormat::None),
];

/// Other names under which engines have the same parsers.
const TOOL_ALIASES: &[(&str, ToolFormat)] = &[
    ("qwen", ToolFormat::Hermes),
    ("qwen25", ToolFormat::Hermes),
    ("qwen3_xml", ToolFormat::Qwen3Coder),
    ("glm47", ToolFormat::Glm45),
    ("glm", ToolFormat::Glm45),
    ("deepseekv3", ToolFormat::DeepseekV3),
    ("deepseekv31", ToolFormat::DeepseekV31),
    ("gpt_oss", ToolFormat::Openai),
    ("llama3", ToolFormat::Llama3Json),
    ("llama4_json", ToolFormat::Llama3Json),
];

const REASONING_NAMES: &[(&str, ReasoningFormat)] = &[
    ("qwen3", ReasoningFormat::Qwen3),
    ("deepseek_r1", ReasoningFormat::DeepseekR1),
    ("deepseek_v3", ReasoningFormat::DeepseekV3),
    ("glm45", ReasoningFormat::Glm45),
    ("kimi_k2", ReasoningFormat::KimiK2),
    ("gpt_oss", ReasoningFormat::GptOss),
    ("mistral", ReasoningFormat::Mistral),
    ("none", ReasoningFormat::None),
];

const REASONING_ALIASES: &[(&str, ReasoningFormat)] = &[
    ("qwen3_thinking", ReasoningFormat::DeepseekR1),
    ("deepseek_v31", ReasoningFormat::DeepseekV3),
    ("glm47", ReasoningFormat::Glm45),
    ("kimi", ReasoningFormat::KimiK2),
    ("openai", ReasoningFormat::GptOss),
    ("openai_gptoss", ReasoningFormat::GptOss),
    ("magistral", ReasoningFormat::Mistral),
];

fn by_name<T: Copy>(
    kind: &'static str,
    name: &str,
    names: &[(&'static str, T)],
    aliases: &[(&'static str, T)],
) -> Result<T, UnknownParser> {
    let plain = name.trim().to_ascii_lowercase().replace('-', "_");
    let found = names.iter().chain(aliases).find(|(known, _)| *known == plain);
    found.map(|(_, format)| *format).ok_or_else(|| UnknownParser {
        kind,
        name: name.to_owned(),
        known: names.iter().map(|(known, _)| *known).collect(),
    })
}

fn name_of<T: PartialEq>(format: &T, names: &[(&'static str, T)]) -> &'static str {
    names.iter().find(|(_, known)| known == format).map_or("none", |(name, _)| name)
}

impl FromStr for ToolFormat {
    type Err = UnknownParser;

    fn from_str(name: &str) -> Result<Self, UnknownParser> {
        by_name("tool", name, TOOL_NAMES, TOOL_ALIASES)
    }
}

impl FromStr for ReasoningFormat {
    type Err = UnknownParser;

    fn from_str(name: &str) -> Result<Self, UnknownParser> {
        by_name("reasoning", name, REASONING_NAMES, REASONING_ALIASES)
    }
}

impl fmt::Display for ToolFormat {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(name_of(self, TOOL_NAMES))
    }
}

impl fmt::Display for ReasoningFormat {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(name_of(self, REASONING_NAMES))
    }
}

impl ParserFamily {
    /// By the marks that a chat template writes: what the model was trained on, whatever it is
    /// called. None when it knows neither calls nor reasoning.
    pub fn from_template(template: &str) -> Option<Self> {
        let has = |mark: &str| template.contains(mark);
        let tools = if has("<|channel|>") && has("<|message|>") {
            ToolFormat::Openai
        } else if has("<|tool_calls_section_begin|>") {
            ToolFormat::KimiK2
        } else if has("<｜tool▁call▁begin｜>") {
            match has("```json") {
                true => ToolFormat::DeepseekV3,
                false => ToolFormat::DeepseekV31,
            }
        } else if has("<arg_key>") {
            ToolFormat::Glm45
        } else if has("<function=") && has("<parameter=") {
            ToolFormat::Qwen3Coder
        } else if has("[TOOL_CALLS]") {
            ToolFormat::Mistral
        } else if has("<tool_call>") {
            ToolFormat::Hermes
        } else if has("<|start_header_id|>") && has("\"parameters\"") {
            ToolFormat::Llama3Json
        } else {
            ToolFormat::None
        };
        let reasoning = match tools {
            ToolFormat::Openai => ReasoningFormat::GptOss,
            _ if has("[THINK]") => ReasoningFormat::Mistral,
            _ if !has("<think>") && !has("</think>") => ReasoningFormat::None,
            ToolFormat::Glm45 => ReasoningFormat::Glm45,
            ToolFormat::KimiK2 => ReasoningFormat::KimiK2,
            ToolFormat::DeepseekV31 => ReasoningFormat::DeepseekV3,
            ToolFormat::DeepseekV3 => ReasoningFormat::DeepseekR1,
            _ => ReasoningFormat::Qwen3,
        };
        let family = Self { tools, reasoning };
        (family != Self::NOTHING).then_some(family)
    }

    /// By the model's name, or that of its folder. A guess, for engines that do not tell the
    /// template; none for names that say nothing.
    pub fn from_model_name(name: &str) -> Option<Self> {
        use {ReasoningFormat as R, ToolFormat as T};
        /// The first whose words are all in the name. More special ones come first.
        const FAMILIES: &[(&[&str], T, R)] = &[
            (&["gpt-oss"], T::Openai, R::GptOss),
            (&["kimi-k2", "thinking"], T::KimiK2, R::KimiK2),
            (&["kimi-k2"], T::KimiK2, R::None),
            (&["deepseek-r1-distill"], T::None, R::DeepseekR1),
            (&["deepseek-r1"], T::DeepseekV3, R::DeepseekR1),
            (&["deepseek-v3.1"], T::DeepseekV31, R::DeepseekV3),
            (&["deepseek-v3.2"], T::None, R::None),
            (&["deepseek-v3"], T::DeepseekV3, R::None),
            (&["glm-4.5"], T::Glm45, R::Glm45),
            (&["glm-4.6"], T::Glm45, R::Glm45),
            (&["glm-4.7"], T::Glm45, R::Glm45),
            (&["glm-5"], T::Glm45, R::Glm45),
            (&["qwen3-coder"], T::Qwen3Coder, R::None),
            (&["qwen3.5"], T::Qwen3Coder, R::Qwen3),
            (&["qwen3", "thinking"], T::Hermes, R::DeepseekR1),
            (&["qwen3", "instruct"], T::Hermes, R::None),
            (&["qwen3"], T::Hermes, R::Qwen3),
            (&["qwq"], T::Hermes, R::Qwen3),
            (&["qwen2.5"], T::Hermes, R::None),
            (&["hermes"], T::Hermes, R::None),
            (&["llama-3"], T::Llama3Json, R::None),
            (&["magistral"], T::Mistral, R::Mistral),
            (&["ministral", "reasoning"], T::Mistral, R::Mistral),
            (&["mistral"], T::Mistral, R::None),
            (&["ministral"], T::Mistral, R::None),
            (&["devstral"], T::Mistral, R::None),
        ];
        let name = name.to_ascii_lowercase().replace('_', "-");
        let found =
            FAMILIES.iter().find(|(words, ..)| words.iter().all(|word| name.contains(word)));
        let (_, tools, reasoning) = *found?;
        Some(Self { tools, reasoning }).filter(|family| *family != Self::NOTHING)
    }

    /// An id for a call whose text has none, unique for the request and the call's place in its
    /// reply. Mistral's templates take nine letters and digits and nothing else.
    pub fn call_id(self, request: &str, index: u32) -> String {
        const LENGTH: usize = 9;
        if self.tools != ToolFormat::Mistral {
            return format!("call_{request}_{index}");
        }
        let mut hasher = DefaultHasher::new();
        (request, index).hash(&mut hasher);
        let mut number = hasher.finish();
        let digits = std::iter::repeat_with(|| {
            let digit = char::from_digit((number % 36) as u32, 36);
            number /= 36;
            digit.unwrap_or('0')
        });
        digits.take(LENGTH).collect()
    }

    /// Everything is text.
    pub const NOTHING: Self = Self { tools: ToolFormat::None, reasoning: ReasoningFormat::None };

    /// Whether its marks are special tokens, which an engine must be told not to leave out of
    /// the text.
    pub fn has_special_marks(self) -> bool {
        let tools = match self.tools {
            ToolFormat::Hermes | ToolFormat::Qwen3Coder | ToolFormat::Glm45 | ToolFormat::None => {
                false
            }
            ToolFormat::DeepseekV3
            | ToolFormat::DeepseekV31
            | ToolFormat::KimiK2
            | ToolFormat::Openai
            | ToolFormat::Llama3Json
            | ToolFormat::Mistral => true,
        };
        tools || matches!(self.reasoning, ReasoningFormat::GptOss | ReasoningFormat::Mistral)
    }

    /// The marks that open and close reasoning, where it has its own.
    pub fn reasoning_marks(self) -> Option<(&'static str, &'static str)> {
        match self.reasoning {
            ReasoningFormat::None | ReasoningFormat::GptOss => None,
            ReasoningFormat::Mistral => Some((THINK_BRACKETS.open, THINK_BRACKETS.close)),
            _ => Some((THINK.open, THINK.close)),
        }
    }

    pub(super) fn parser(self, start: ReplyStart, tools: ToolSchemas) -> Box<dyn TextParser> {
        let with_calls = !tools.is_empty();
        let is_harmony = ReasoningFormat::GptOss == self.reasoning;
        if is_harmony || self.tools == ToolFormat::Openai {
            return Box::new(Harmony::new(with_calls));
        }
        let calls: Box<dyn TextParser> = match self.tools {
            _ if !with_calls => Box::new(PlainText),
            ToolFormat::Hermes => Box::new(Hermes::default()),
            ToolFormat::Qwen3Coder => Box::new(QwenCoder::new(tools)),
            ToolFormat::Glm45 => Box::new(Glm::new(tools)),
            ToolFormat::DeepseekV3 => Box::new(DeepseekKimi::new(Layout::DeepseekV3)),
            ToolFormat::DeepseekV31 => Box::new(DeepseekKimi::new(Layout::DeepseekV31)),
            ToolFormat::KimiK2 => Box::new(DeepseekKimi::new(Layout::KimiK2)),
            ToolFormat::Llama3Json => Box::new(Llama::new()),
            ToolFormat::Mistral => Box::new(Mistral::new()),
            ToolFormat::Openai | ToolFormat::None => Box::new(PlainText),
        };
        let marks = match self.reasoning {
            ReasoningFormat::None | ReasoningFormat::GptOss => return calls,
            ReasoningFormat::Mistral => THINK_BRACKETS,
            _ => THINK,
        };
        let in_reasoning = match start {
            ReplyStart::InReasoning => true,
            ReplyStart::Fresh => false,
            ReplyStart::Usual => {
                matches!(self.reasoning, ReasoningFormat::Qwen3 | ReasoningFormat::DeepseekR1)
            }
        };
        Box::new(Thinking::new(marks, in_reasoning, calls))
    }
}
