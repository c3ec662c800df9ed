//! What a translation could not keep.
//!
//! Nothing is dropped in silence: a decoder either refuses a field, carries it, or
//! writes a loss with a stable name, which the record keeps and the node counts.

use serde::{Deserialize, Serialize};

/// A kind of loss. The names are stable: they are metric labels and stand in records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossKind {
    /// Prompt-cache marks; engines cache prefixes by themselves.
    CacheControlDropped,
    /// Claude Code's billing line in the system text, which Anthropic's servers keep from the
    /// model as well. It would break every prefix.
    BillingHeaderDropped,
    /// The wish for a reasoning mode or budget; the model's template decides.
    ThinkingConfigIgnored,
    /// The wish for an effort level.
    EffortIgnored,
    /// The wish to have the server edit the history; it is sent as it came.
    ContextManagementIgnored,
    /// The flag that a tool failed; its text is kept.
    ToolErrorFlagDropped,
    /// The wish to show a tool to the model only later; it is shown at once.
    ToolDeferLoadingIgnored,
    /// A field of a tool that engines have no place for.
    ToolFieldDropped,
    /// A block engines have no place for, given to the model as JSON text.
    BlockAsText,
    /// Several text blocks given to the model as one text, joined with line ends.
    TextBlocksJoined,
    /// The order between reasoning, text and calls of one turn; engines take each kind together.
    BlockOrderFlattened,
    /// A thought signature of another server, or one that stands with no part of the model's.
    ThoughtSignatureDropped,
    /// The name of a tool in its result, where it differs from the call's; the id pairs them.
    ToolResultNameDropped,
    /// The wish to have calls checked against their schemas while they are sampled.
    ToolCheckIgnored,
    /// Thresholds of filters that the engine does not have.
    SafetySettingsIgnored,
    /// `developer` messages given to the model as `system`, the role templates know.
    DeveloperAsSystem,
    /// The wish for longer or shorter replies.
    VerbosityIgnored,
    /// A tool that the vendor's servers run, such as web search: the model is not told of it.
    HostedToolNotOffered,
    /// A tool of a kind of its own, taking any text or running a shell, given to the model as a
    /// function.
    ToolAsFunction,
    /// The grammar of a tool's input is told to the model in words; sampling does not follow it.
    ToolGrammarNotEnforced,
    /// Reasoning that the harness changed in its history; the model gets what was sampled.
    ReasoningEditIgnored,
    /// A summary of reasoning that is there in full as well.
    ReasoningSummaryDropped,
    /// Reasoning of another server that only it can read.
    EncryptedReasoningDropped,
    /// A refusal given to the model as a text like any other.
    RefusalAsText,
    /// A field Polar does not know and engines have no place for.
    UnknownFieldIgnored,
}

impl LossKind {
    /// The name kept in records and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CacheControlDropped => "cache_control_dropped",
            Self::BillingHeaderDropped => "billing_header_dropped",
            Self::ThinkingConfigIgnored => "thinking_config_ignored",
            Self::EffortIgnored => "effort_ignored",
            Self::ContextManagementIgnored => "context_management_ignored",
            Self::ToolErrorFlagDropped => "tool_error_flag_dropped",
            Self::ToolDeferLoadingIgnored => "tool_defer_loading_ignored",
            Self::ToolFieldDropped => "tool_field_dropped",
            Self::BlockAsText => "block_as_text",
            Self::TextBlocksJoined => "text_blocks_joined",
            Self::BlockOrderFlattened => "block_order_flattened",
            Self::ThoughtSignatureDropped => "thought_signature_dropped",
            Self::ToolResultNameDropped => "tool_result_name_dropped",
            Self::ToolCheckIgnored => "tool_check_ignored",
            Self::SafetySettingsIgnored => "safety_settings_ignored",
            Self::DeveloperAsSystem => "developer_as_system",
            Self::VerbosityIgnored => "verbosity_ignored",
            Self::HostedToolNotOffered => "hosted_tool_not_offered",
            Self::ToolAsFunction => "tool_as_function",
            Self::ToolGrammarNotEnforced => "tool_grammar_not_enforced",
            Self::ReasoningEditIgnored => "reasoning_edit_ignored",
            Self::ReasoningSummaryDropped => "reasoning_summary_dropped",
            Self::EncryptedReasoningDropped => "encrypted_reasoning_dropped",
            Self::RefusalAsText => "refusal_as_text",
            Self::UnknownFieldIgnored => "unknown_field_ignored",
        }
    }
}

/// One kind of loss in one request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// What kind.
    pub kind: LossKind,
    /// Path of the first field it concerns, for example `messages[2].content[0].cache_control`.
    pub field: String,
    /// How many fields it concerns.
    pub count: u32,
}
