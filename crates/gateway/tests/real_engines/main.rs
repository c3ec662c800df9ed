//! The whole path against real engines: harness, gateway, adapter, journal, traces.
//!
//! Run through `tests/engines/engines.py run ENGINE -- cargo test -p polar-gateway --test
//! real_engines ENGINE`, which starts the engine with a tiny model and says where it is.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what was measured is printed")]

mod client;
mod conversations;
mod direct;
mod engine_under_test;
mod faults;
mod ids;
mod several;
mod token_mode;
mod vision;
mod weights;

use polar_convo::Dialect;
use polar_engine::EngineKind;
use polar_types::UpdateMode;

/// The tests every engine has to pass, in a module named like the engine.
macro_rules! engine_tests {
    ($module:ident, $kind:expr) => {
        mod $module {
            use super::*;

            #[tokio::test]
            async fn promise_3_the_probe_passes_every_check() {
                engine_under_test::passes_every_check($kind).await;
            }

            #[tokio::test]
            async fn promise_2_twenty_chat_calls_unary() {
                conversations::twenty_calls($kind, Dialect::Chat, false).await;
            }

            #[tokio::test]
            async fn promise_2_twenty_chat_calls_streamed() {
                conversations::twenty_calls($kind, Dialect::Chat, true).await;
            }

            #[tokio::test]
            async fn promise_2_twenty_messages_calls_unary() {
                conversations::twenty_calls($kind, Dialect::Messages, false).await;
            }

            #[tokio::test]
            async fn promise_2_twenty_messages_calls_streamed() {
                conversations::twenty_calls($kind, Dialect::Messages, true).await;
            }

            #[tokio::test]
            async fn promise_2_twenty_responses_calls_unary() {
                conversations::twenty_calls($kind, Dialect::Responses, false).await;
            }

            #[tokio::test]
            async fn promise_2_twenty_responses_calls_streamed() {
                conversations::twenty_calls($kind, Dialect::Responses, true).await;
            }

            #[tokio::test]
            async fn promise_2_twenty_google_calls_unary() {
                conversations::twenty_calls($kind, Dialect::Google, false).await;
            }

            #[tokio::test]
            async fn promise_2_twenty_google_calls_streamed() {
                conversations::twenty_calls($kind, Dialect::Google, true).await;
            }

            #[tokio::test]
            async fn a_prompt_that_does_not_fit_is_told_with_its_numbers() {
                faults::prompt_does_not_fit($kind).await;
            }

            #[tokio::test]
            async fn a_limit_above_the_context_window_is_no_limit() {
                faults::more_tokens_than_fit_may_be_asked_for($kind).await;
            }

            #[tokio::test]
            async fn a_limit_that_does_not_fit_beside_the_prompt_is_lowered() {
                faults::more_than_is_left_may_be_asked_for($kind).await;
            }

            #[tokio::test]
            async fn dropping_a_generation_frees_the_engine() {
                faults::dropping_frees_the_engine($kind).await;
            }

            #[tokio::test]
            async fn counted_tokens_are_those_of_the_prompt() {
                faults::counts_like_it_generates($kind).await;
            }

            #[tokio::test]
            async fn promise_2_three_turns_on_the_ids_that_were_sampled() {
                ids::history_is_what_was_sampled($kind).await;
            }

            #[tokio::test]
            async fn a_sampling_behind_ids_ends_where_it_is_told_to() {
                ids::ends_where_it_is_told_to($kind).await;
            }

            #[tokio::test]
            async fn dropping_a_sampling_behind_ids_frees_the_engine() {
                ids::dropping_frees_the_engine($kind).await;
            }

            #[tokio::test]
            async fn ids_that_cannot_be_taken_are_refused_before_the_engine_is_asked() {
                ids::refuses_before_the_engine_is_asked($kind).await;
            }

            #[tokio::test]
            async fn promise_3_every_id_is_scored_as_itself() {
                ids::scores_every_id($kind).await;
            }

            #[tokio::test]
            async fn the_engines_rendering_is_what_chat_is_sampled_behind() {
                ids::renders_what_chat_is_sampled_behind($kind).await;
            }

            #[tokio::test]
            async fn promise_3_token_mode_starts_with_the_models_own_files() {
                token_mode::starts_with_the_models_own_files($kind).await;
            }

            #[tokio::test]
            async fn promise_3_token_mode_refuses_another_template() {
                token_mode::refuses_another_template($kind).await;
            }

            #[tokio::test]
            async fn promise_2_a_chat_conversation_in_token_mode_is_one_trace() {
                token_mode::a_conversation_is_one_trace($kind, Dialect::Chat).await;
            }

            #[tokio::test]
            async fn promise_2_a_messages_conversation_in_token_mode_is_one_trace() {
                token_mode::a_conversation_is_one_trace($kind, Dialect::Messages).await;
            }

            #[tokio::test]
            async fn promise_2_stripped_reasoning_forks_only_in_chat_mode() {
                token_mode::stripped_reasoning_forks_only_in_chat_mode($kind).await;
            }
        }
    };
}

engine_tests!(llama, EngineKind::LlamaCpp);
engine_tests!(vllm, EngineKind::Vllm);
engine_tests!(sglang, EngineKind::Sglang);

#[tokio::test]
async fn vllm_tells_which_weights_sampled_and_what_was_aborted() {
    faults::weight_versions_and_aborts().await;
}

#[tokio::test]
async fn vllm_keeps_what_was_sampled_before_a_harness_hangs_up() {
    token_mode::hanging_up_keeps_what_was_sampled(EngineKind::Vllm).await;
}

#[tokio::test]
async fn sglang_keeps_what_was_sampled_before_a_harness_hangs_up() {
    token_mode::hanging_up_keeps_what_was_sampled(EngineKind::Sglang).await;
}

#[tokio::test]
async fn vllm_takes_ids_in_two_places() {
    ids::vllm_has_two_places_for_ids().await;
}

#[tokio::test]
async fn vllm_tells_which_weights_sampled_ids_that_were_aborted() {
    ids::vllm_tells_weights_of_an_aborted_reply().await;
}

#[tokio::test]
async fn llama_gives_ids_that_make_no_characters() {
    ids::llama_gives_ids_that_make_no_characters().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn llama_sessions_outlive_one_of_two_servers() {
    several::sessions_outlive_one_of_two_servers().await;
}

#[tokio::test]
async fn vllm_drains_64_calls_for_new_weights() {
    weights::change_under_calls(EngineKind::Vllm, UpdateMode::Drain).await;
}

#[tokio::test]
async fn vllm_goes_on_with_64_calls_by_new_weights() {
    weights::change_under_calls(EngineKind::Vllm, UpdateMode::Pause).await;
}

#[tokio::test]
async fn vllm_samples_64_calls_on_by_new_weights() {
    weights::change_under_calls(EngineKind::Vllm, UpdateMode::Continue).await;
}

#[tokio::test]
async fn sglang_drains_64_calls_for_new_weights() {
    weights::change_under_calls(EngineKind::Sglang, UpdateMode::Drain).await;
}

#[tokio::test]
async fn sglang_goes_on_with_64_calls_by_new_weights() {
    weights::change_under_calls(EngineKind::Sglang, UpdateMode::Pause).await;
}

#[tokio::test]
async fn sglang_samples_64_calls_on_by_new_weights() {
    weights::change_under_calls(EngineKind::Sglang, UpdateMode::Continue).await;
}
