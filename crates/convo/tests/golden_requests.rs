//! Requests as agent programs send them, and what an engine gets for them.
//!
//! A fixture is named after who sends it and in which dialect; its snapshot after where
//! it goes.

use polar_convo::{Dialect, encode_engine_chat};
use serde_json::json;

macro_rules! golden {
    ($($case:ident, $dialect:ident, $file:literal;)*) => {$(
        #[test]
        fn $case() {
            let body = include_bytes!(concat!("fixtures/", $file, ".json"));
            let request = Dialect::$dialect.decode_request(body).unwrap();
            let seen = json!({
                "engine": encode_engine_chat(&request),
                "stream": request.stream,
                "include_usage": request.chat.include_usage,
                "logprobs": request.chat.logprobs,
                "functions": request.chat.functions,
                "unsent": request.unsent,
                "losses": request.losses,
            });
            insta::assert_json_snapshot!(concat!($file, "-engine"), seen);
        }
    )*};
}

golden! {
    claude_code_with_a_known_model, Messages, "claude_code_4_5.messages";
    claude_code_with_an_unknown_model, Messages, "claude_code_unknown_model.messages";
    a_title_request_with_everything_optional, Messages, "title_request.messages";
    messages_with_everything_optional, Messages, "everything.messages";
    pi, Chat, "pi.chat";
    chat_with_everything_optional, Chat, "everything.chat";
    chat_with_functions, Chat, "functions.chat";
    qwen_code, Chat, "qwen_code.chat";
    codex_with_an_unknown_model, Responses, "codex_unknown_model.responses";
    codex_with_a_model_it_knows, Responses, "codex_known_model.responses";
    the_sdk_with_everything_optional, Responses, "sdk.responses";
    gemini_cli, Google, "gemini_cli.google";
    google_with_everything_optional, Google, "everything.google";
}
