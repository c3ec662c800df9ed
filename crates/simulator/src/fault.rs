//! Faults an engine may have, on demand.
//!
//! One spelling everywhere (policy files, the command line, the `x-simulate-fault`
//! header): a name, with a value where it needs one, such as `status=429,retry_after=2`
//! or `cut_after=5`.

use crate::weights::{mix, unit};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Request header that asks for a fault.
pub(crate) const HEADER: &str = "x-simulate-fault";

/// One fault.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Fault {
    /// `status=CODE` or `status=CODE,retry_after=SECONDS`: the request is refused.
    Status {
        /// HTTP status.
        code: u16,
        /// Value of the `retry-after` header.
        retry_after: Option<u64>,
    },
    /// `context_overflow`: the prompt is refused as one that is too long.
    ContextOverflow,
    /// `cut_after=TOKENS`: the connection breaks in the middle of the reply.
    CutAfter(usize),
    /// `stall_after=TOKENS`: nothing more comes, the connection stays open.
    StallAfter(usize),
    /// `abort_after=TOKENS`: the reply ends with finish reason `abort`.
    AbortAfter(usize),
    /// `slow_headers=SECONDS`: the response headers come late.
    SlowHeaders(f64),
    /// `missing_ids`: no token ids, although asked for.
    MissingIds,
    /// `missing_logprobs`: no logprobs, although asked for.
    MissingLogprobs,
    /// `wrong_counts`: one logprob less than ids, and usage that matches neither.
    WrongCounts,
    /// `out_of_vocabulary`: an id that no token has.
    OutOfVocabulary,
}

/// A fault that happens to some requests.
#[derive(Debug, Clone, PartialEq)]
pub struct FaultChance {
    /// What happens.
    pub fault: Fault,
    /// To which share of requests, 0 … 1.
    pub probability: f64,
}

impl FaultChance {
    /// Whether it hits the request with this number.
    pub(crate) fn hits(&self, seed: u64, request: u64) -> bool {
        unit(mix(seed ^ mix(request ^ 0xfa_017))) < self.probability
    }
}

/// Why a fault could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no fault; write status=CODE[,retry_after=SECONDS], context_overflow, \
     cut_after=TOKENS, stall_after=TOKENS, abort_after=TOKENS, slow_headers=SECONDS, missing_ids, \
     missing_logprobs, wrong_counts or out_of_vocabulary"
)]
pub struct FaultSyntaxError(String);

impl FromStr for Fault {
    type Err = FaultSyntaxError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| FaultSyntaxError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Fault> {
    let (name, value) = text.trim().split_once('=').unwrap_or((text.trim(), ""));
    let fault = match name {
        "status" => {
            let (code, rest) = value.split_once(',').unwrap_or((value, ""));
            let retry_after = match rest {
                "" => None,
                rest => Some(rest.trim().strip_prefix("retry_after=")?.parse().ok()?),
            };
            let code = code.parse().ok().filter(|code| (400..600).contains(code))?;
            return Some(Fault::Status { code, retry_after });
        }
        "cut_after" => Fault::CutAfter(value.parse().ok()?),
        "stall_after" => Fault::StallAfter(value.parse().ok()?),
        "abort_after" => Fault::AbortAfter(value.parse().ok()?),
        "slow_headers" => {
            let seconds = value.parse().ok()?;
            Duration::try_from_secs_f64(seconds).ok()?;
            Fault::SlowHeaders(seconds)
        }
        "context_overflow" if value.is_empty() => Fault::ContextOverflow,
        "missing_ids" if value.is_empty() => Fault::MissingIds,
        "missing_logprobs" if value.is_empty() => Fault::MissingLogprobs,
        "wrong_counts" if value.is_empty() => Fault::WrongCounts,
        "out_of_vocabulary" if value.is_empty() => Fault::OutOfVocabulary,
        _ => return None,
    };
    Some(fault)
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status { code, retry_after: None } => write!(f, "status={code}"),
            Self::Status { code, retry_after: Some(seconds) } => {
                write!(f, "status={code},retry_after={seconds}")
            }
            Self::ContextOverflow => f.write_str("context_overflow"),
            Self::CutAfter(tokens) => write!(f, "cut_after={tokens}"),
            Self::StallAfter(tokens) => write!(f, "stall_after={tokens}"),
            Self::AbortAfter(tokens) => write!(f, "abort_after={tokens}"),
            Self::SlowHeaders(seconds) => write!(f, "slow_headers={seconds}"),
            Self::MissingIds => f.write_str("missing_ids"),
            Self::MissingLogprobs => f.write_str("missing_logprobs"),
            Self::WrongCounts => f.write_str("wrong_counts"),
            Self::OutOfVocabulary => f.write_str("out_of_vocabulary"),
        }
    }
}

impl TryFrom<String> for Fault {
    type Error = FaultSyntaxError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Fault> for String {
    fn from(fault: Fault) -> Self {
        fault.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelling_round_trips() {
        for text in [
            "status=500",
            "status=429,retry_after=2",
            "context_overflow",
            "cut_after=5",
            "stall_after=0",
            "abort_after=3",
            "slow_headers=0.25",
            "missing_ids",
            "missing_logprobs",
            "wrong_counts",
            "out_of_vocabulary",
        ] {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        for text in
            ["", "status", "status=200", "cut_after=x", "missing_ids=1", "slow_headers=-1", "?"]
        {
            assert!(text.parse::<Fault>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn chance_is_fair_and_repeatable() {
        let chance = FaultChance { fault: Fault::MissingIds, probability: 0.25 };
        let hits = |seed| (0..10_000).filter(|request| chance.hits(seed, *request)).count();
        assert_eq!(hits(7), hits(7));
        assert!((2300..2700).contains(&hits(7)), "{}", hits(7));
    }
}
