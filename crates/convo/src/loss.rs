//! What a translation could not keep.
//!
//! Nothing is dropped in silence: a decoder either refuses a field, carries it, or
//! writes a loss with a stable name, which the record keeps and the trajectory counts. All kinds
//! stand in one table here, from which `cargo xtask dialects` writes that of the documents.

use crate::Dialect;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

macro_rules! loss_kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident $name:literal in $($dialect:ident)+;)*) => {
        /// A kind of loss. The names are stable: they are metric labels and stand in records.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum LossKind {
            $($(#[doc = $doc])+ #[serde(rename = $name)] $kind,)*
        }

        impl LossKind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// The name kept in records and metrics.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            /// What is lost.
            pub fn about(self) -> &'static str {
                match self {
                    $(Self::$kind => concat!($($doc),+).trim_ascii(),)*
                }
            }

            /// The dialects in which it can be said.
            pub fn dialects(self) -> &'static [Dialect] {
                match self {
                    $(Self::$kind => &[$(Dialect::$dialect),+],)*
                }
            }
        }
    };
}

loss_kinds! {
    /// Prompt-cache marks; engines cache prefixes by themselves.
    CacheControlDropped "cache_control_dropped" in Chat Messages;
    /// The wish for a reasoning mode or budget; the model's template decides.
    ThinkingConfigIgnored "thinking_config_ignored" in Messages Google;
    /// The wish for an effort level.
    EffortIgnored "effort_ignored" in Messages Responses;
    /// The wish to have the server edit the history; it is sent as it came.
    ContextManagementIgnored "context_management_ignored" in Messages Responses;
    /// The flag that a tool failed; its text is kept.
    ToolErrorFlagDropped "tool_error_flag_dropped" in Messages Google;
    /// The wish to show a tool to the model only later; it is shown at once.
    ToolDeferLoadingIgnored "tool_defer_loading_ignored" in Messages Responses;
    /// A field of a tool that engines have no place for.
    ToolFieldDropped "tool_field_dropped" in Chat Messages Responses Google;
    /// A block engines have no place for, given to the model as JSON text.
    BlockAsText "block_as_text" in Messages;
    /// Several text blocks given to the model as one text, joined with line ends.
    TextBlocksJoined "text_blocks_joined" in Chat Messages Responses Google;
    /// The order between reasoning, text and calls of one turn; engines take each kind together.
    BlockOrderFlattened "block_order_flattened" in Messages Responses Google;
    /// A thought signature of another server, or one that stands with no part of the model's.
    ThoughtSignatureDropped "thought_signature_dropped" in Google;
    /// The name of a tool in its result, where it differs from the call's; the id pairs them.
    ToolResultNameDropped "tool_result_name_dropped" in Google;
    /// The wish to have calls checked against their schemas while they are sampled.
    ToolCheckIgnored "tool_check_ignored" in Google;
    /// Thresholds of filters that the engine does not have.
    SafetySettingsIgnored "safety_settings_ignored" in Google;
    /// `developer` messages given to the model as `system`, the role templates know.
    DeveloperAsSystem "developer_as_system" in Chat Responses;
    /// The wish for longer or shorter replies.
    VerbosityIgnored "verbosity_ignored" in Responses;
    /// A tool that the vendor's servers run, such as web search: the model is not told of it.
    HostedToolNotOffered "hosted_tool_not_offered" in Responses;
    /// A tool of a kind of its own, taking any text or running a shell, given to the model as a
    /// function.
    ToolAsFunction "tool_as_function" in Responses;
    /// The grammar of a tool's input is told to the model in words; sampling does not follow it.
    ToolGrammarNotEnforced "tool_grammar_not_enforced" in Responses;
    /// Reasoning that the harness changed in its history; the model gets what was sampled.
    ReasoningEditIgnored "reasoning_edit_ignored" in Responses;
    /// A summary of reasoning that is there in full as well.
    ReasoningSummaryDropped "reasoning_summary_dropped" in Responses;
    /// Reasoning of another server that only it can read.
    EncryptedReasoningDropped "encrypted_reasoning_dropped" in Messages Responses;
    /// A refusal given to the model as a text like any other.
    RefusalAsText "refusal_as_text" in Chat Responses;
    /// Half of a letter, where a harness has cut a text of UTF-16 inside it; U+FFFD stands for it.
    LoneSurrogateReplaced "lone_surrogate_replaced" in Chat Messages Responses Google;
    /// A reply that llama.cpp's own parser could not read: it was sampled, and the engine keeps it to
    /// itself.
    ReplyUnreadable "reply_unreadable" in Chat Messages Responses Google;
    /// A field Polar does not know and engines have no place for.
    UnknownFieldIgnored "unknown_field_ignored" in Chat Messages Responses Google;
}

/// All kinds as a table in Markdown.
pub fn markdown_table() -> String {
    let columns = [Dialect::Chat, Dialect::Messages, Dialect::Responses, Dialect::Google];
    let mut table = "| name | what is lost |".to_owned();
    for dialect in columns {
        let _ = write!(table, " {} |", dialect.as_str());
    }
    table.push_str("\n|---|---|");
    table.push_str(&":-:|".repeat(columns.len()));
    for kind in LossKind::ALL {
        let _ = write!(table, "\n| `{}` | {} |", kind.as_str(), kind.about());
        for dialect in columns {
            let said = kind.dialects().contains(&dialect);
            table.push_str(if said { " × |" } else { " |" });
        }
    }
    table.push('\n');
    table
}

/// One kind of loss in one request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// What kind.
    pub kind: LossKind,
    /// Path of the first field it concerns, for example `messages[2].content[0].cache_control`;
    /// empty where the body was read before its fields were.
    pub field: String,
    /// How many fields it concerns.
    pub count: u32,
}
