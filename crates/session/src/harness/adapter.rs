//! The shape of an adapter file.

use super::check_notes::CheckNotes;
use super::recipe::InstallRecipe;
use polar_types::{HarnessRules, NormaliseRule, RoleRule, StandInRule};
use serde::de::{self, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// One agent program. Text values marked as templates are rendered for each session
/// with the variables listed in [`super::RenderInput`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HarnessAdapter {
    /// What tasks call it.
    pub name: String,
    /// One line for people.
    #[serde(default)]
    pub description: String,
    /// Version of the program that this adapter is known to work with.
    pub version: String,
    /// Which API it speaks to the gateway.
    pub provider: Provider,
    /// Model name it is told when the task names none.
    pub model: String,
    /// How to get the program; absent when it is already inside the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install: Option<InstallRecipe>,
    /// Program and arguments; no shell is added. Templates.
    pub command: Vec<Argument>,
    /// Given on stdin, which is closed afterwards. A template; empty when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Environment of the program. Templates.
    #[serde(default)]
    pub env_vars: BTreeMap<String, EnvValue>,
    /// Files written before it starts.
    #[serde(default)]
    pub files: Vec<FileTemplate>,
    /// Folder in which it looks for skills; absent when it has none. A template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skills_folder: Option<String>,
    /// What a task may set, with defaults.
    #[serde(default)]
    pub settings: BTreeMap<String, Setting>,
    /// How to tell that it did its work.
    #[serde(default)]
    pub success: SuccessRule,
    /// Tell who made a call, so that titles and summaries are not trained with the agent's work;
    /// the first rule that fits decides. Calls that none fits are placed by their conversation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<RoleRule>,
    /// Take text out of prompts that changes from call to call and means nothing to the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub normalise: Vec<NormaliseRule>,
    /// Tell calls that it writes into its history in the place of those that it could not run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stand_ins: Vec<StandInRule>,
    /// What `polar harness check` must know of it.
    #[serde(default, skip_serializing_if = "CheckNotes::is_empty")]
    pub check: CheckNotes,
}

impl HarnessAdapter {
    /// The rules about its calls, without those that `keep` switches off.
    pub fn rules(&self, keep: &[String]) -> HarnessRules {
        let mut rules = HarnessRules {
            roles: self.roles.clone(),
            normalise: self.normalise.clone(),
            stand_ins: self.stand_ins.clone(),
        };
        rules.normalise.retain(|rule| !keep.contains(&rule.name));
        rules.stand_ins.retain(|rule| !keep.contains(&rule.name));
        rules
    }
}

impl HarnessAdapter {
    /// Every template it has, with the key that it stands under.
    pub(super) fn templates(&self) -> Vec<(&'static str, Template<'_>)> {
        let mut all = Vec::new();
        for argument in &self.command {
            match argument {
                Argument::Always(text) => all.push(("command", Template::Text(text))),
                Argument::When { when, args } => {
                    all.push(("command", Template::Condition(when)));
                    all.extend(args.iter().map(|text| ("command", Template::Text(text))));
                }
            }
        }
        all.extend(self.stdin.iter().map(|text| ("stdin", Template::Text(text))));
        for value in self.env_vars.values() {
            match value {
                EnvValue::Always(text) => all.push(("env_vars", Template::Text(text))),
                EnvValue::When { when, value } => {
                    all.push(("env_vars", Template::Condition(when)));
                    all.push(("env_vars", Template::Text(value)));
                }
            }
        }
        for file in &self.files {
            all.push(("files", Template::Text(&file.path)));
            all.push(("files", Template::Text(&file.content)));
        }
        all.extend(self.skills_folder.iter().map(|text| ("skills_folder", Template::Text(text))));
        all
    }
}

/// Something to be filled in.
#[derive(Debug, Clone, Copy)]
pub(super) enum Template<'a> {
    /// Text with expressions in double braces.
    Text(&'a str),
    /// A bare expression.
    Condition(&'a str),
}

/// The API a harness speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provider {
    /// OpenAI Chat Completions.
    OpenaiChat,
    /// OpenAI Responses.
    OpenaiResponses,
    /// Anthropic Messages.
    AnthropicMessages,
    /// Google generateContent.
    GoogleGenerateContent,
    /// Whichever it likes.
    Any,
}

impl Provider {
    /// The journal's name for the dialect; absent when any is right.
    pub fn dialect(self) -> Option<&'static str> {
        match self {
            Self::OpenaiChat => Some("chat"),
            Self::OpenaiResponses => Some("responses"),
            Self::AnthropicMessages => Some("messages"),
            Self::GoogleGenerateContent => Some("google"),
            Self::Any => None,
        }
    }
}

/// One or more arguments: a template, or some that depend on a condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Argument {
    /// Always there.
    Always(String),
    /// There when the expression `when` is true.
    When {
        /// A template expression, for example `settings.bare`.
        when: String,
        /// Templates.
        args: Vec<String>,
    },
}

/// An environment variable's value: a template, or one that depends on a condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum EnvValue {
    /// Always set.
    Always(String),
    /// Set when the expression `when` is true.
    When {
        /// A template expression, for example `settings.bare`.
        when: String,
        /// A template.
        value: String,
    },
}

/// A file written into the sandbox before the harness starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileTemplate {
    /// Where. A template; relative paths start at the work folder.
    pub path: String,
    /// What goes in. A template.
    pub content: String,
    /// Whether it gets the executable bits.
    #[serde(default)]
    pub executable: bool,
}

/// Something a task may set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Its value when the task says nothing. Also decides its type.
    pub default: Value,
    /// What it does.
    pub description: String,
    /// The values it may take; any of the default's type when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choices: Option<Vec<Value>>,
}

/// How to tell that a run did its work. Exit codes of agent programs lie, so the
/// output and the calls are looked at too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SuccessRule {
    /// Exit codes of a good run.
    pub exit_codes: Vec<i32>,
    /// Whether a run is a failure, whatever its exit code, when it made no model call or
    /// when the last one it made failed.
    pub requires_call: bool,
    /// Output that means failure whatever the exit code.
    pub failures: Vec<FailurePattern>,
}

impl Default for SuccessRule {
    fn default() -> Self {
        Self { exit_codes: vec![0], requires_call: true, failures: Vec::new() }
    }
}

/// Output that means failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailurePattern {
    /// Where to look.
    #[serde(default)]
    pub stream: OutputStream,
    /// A regular expression, searched in the last 256 KiB of the stream.
    pub pattern: String,
    /// What it means, for people.
    pub meaning: String,
}

/// An output of the harness.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// Both.
    #[default]
    Any,
}

/// A value written as plain text, or as an object with a condition.
trait TextOrObject: Sized {
    type Object: for<'de> Deserialize<'de>;
    const EXPECTED: &'static str;
    fn from_text(text: String) -> Self;
    fn from_object(object: Self::Object) -> Self;
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionalArguments {
    when: String,
    args: Vec<String>,
}

impl TextOrObject for Argument {
    type Object = ConditionalArguments;
    const EXPECTED: &'static str = "an argument, or an object with `when` and `args`";
    fn from_text(text: String) -> Self {
        Self::Always(text)
    }
    fn from_object(object: ConditionalArguments) -> Self {
        Self::When { when: object.when, args: object.args }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionalValue {
    when: String,
    value: String,
}

impl TextOrObject for EnvValue {
    type Object = ConditionalValue;
    const EXPECTED: &'static str = "a value, or an object with `when` and `value`";
    fn from_text(text: String) -> Self {
        Self::Always(text)
    }
    fn from_object(object: ConditionalValue) -> Self {
        Self::When { when: object.when, value: object.value }
    }
}

struct Either<T>(PhantomData<T>);

impl<'de, T: TextOrObject> Visitor<'de> for Either<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        Ok(T::from_text(text.to_owned()))
    }

    // `PORT: 8080` and `DEBUG: true` mean the text; asking for quotes would only annoy.
    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        Ok(T::from_text(number.to_string()))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        Ok(T::from_text(number.to_string()))
    }

    fn visit_bool<E: de::Error>(self, truth: bool) -> Result<T, E> {
        Ok(T::from_text(truth.to_string()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::Object::deserialize(MapAccessDeserializer::new(map)).map(T::from_object)
    }
}

impl<'de> Deserialize<'de> for Argument {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Either(PhantomData))
    }
}

impl<'de> Deserialize<'de> for EnvValue {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Either(PhantomData))
    }
}
