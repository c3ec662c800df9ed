//! Which weights sampled a reply, for engines that tell their version only when asked.
//!
//! The engine is asked before and after a generation. If both answers are the same, that
//! version sampled every token; if not, where it changed is not known, and is not guessed.

use crate::reply_stream::Settle;
use crate::transport::Transport;
use crate::{EngineEnd, EngineEvent};
use polar_types::WeightSpan;
use serde::Deserialize;
use serde_json::json;

/// Where an engine tells its weight version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VersionPage(pub(crate) &'static str);

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    weight_version: Option<String>,
}

impl VersionPage {
    pub(crate) async fn ask(self, transport: &Transport) -> Option<String> {
        transport.get::<Page>(self.0).await.ok()?.weight_version
    }
}

/// Ends a reply by asking for the weight version again, where there is one.
pub(crate) fn settle_version(watch: Option<VersionWatch>) -> Settle {
    Box::new(|mut end| {
        Box::pin(async move {
            if let Some(watch) = watch {
                watch.settle(&mut end).await;
            }
            vec![EngineEvent::End(end)]
        })
    })
}

/// The version before a generation.
pub(crate) struct VersionWatch {
    page: VersionPage,
    transport: Transport,
    before: Option<String>,
}

impl VersionWatch {
    /// To be called before the generation starts.
    pub(crate) async fn start(page: VersionPage, transport: &Transport) -> Self {
        Self { page, transport: transport.clone(), before: page.ask(transport).await }
    }

    /// To be called when the last token has been sampled. Spans the engine gave with its
    /// reply stay as they are.
    pub(crate) async fn settle(self, end: &mut EngineEnd) {
        if !end.weight_versions.is_empty() {
            return;
        }
        let after = self.page.ask(&self.transport).await;
        if self.before.is_none() && after.is_none() {
            return;
        }
        let version = if self.before == after { after } else { None };
        if self.before.is_some() && version.is_none() {
            end.extra.insert("weight_version_before".into(), json!(self.before));
        }
        let count = end.usage.completion_tokens;
        if count > 0 {
            end.weight_versions = vec![WeightSpan { version, start: 0, end: count }];
        }
    }
}
