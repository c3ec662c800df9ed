//! What a sandbox asked the proxy of its `runtime.allowed_hosts` for.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Most hosts that are told apart.
const MOST_HOSTS: usize = 64;
/// Longest name of a host, as names are in DNS, with a port.
const MOST_NAME: usize = 260;

/// The hosts, in the order in which they were first asked for. Empty where the task allows none: a
/// closed network has no proxy then, and nobody sees what finds no way out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub struct NetworkUse {
    /// At most 64.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostUse>,
    /// Requests for further hosts.
    #[serde(skip_serializing_if = "is_none")]
    pub others: u64,
}

fn is_none(count: &u64) -> bool {
    *count == 0
}

/// One host, and how often it was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HostUse {
    /// Name or address, and port: `pypi.org:443`.
    pub host: String,
    /// Connections that were let through.
    #[serde(default, skip_serializing_if = "is_none")]
    pub reached: u64,
    /// Requests that were refused, because the task does not allow the host or its name leads
    /// where none may.
    #[serde(default, skip_serializing_if = "is_none")]
    pub refused: u64,
    /// Requests for a host that is allowed and was not found, or did not answer.
    #[serde(default, skip_serializing_if = "is_none")]
    pub failed: u64,
}

/// What became of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostAnswer {
    /// It was let through.
    Reached,
    /// It was refused.
    Refused,
    /// The host could not be reached.
    Failed,
}

impl NetworkUse {
    /// Whether nothing was asked for.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.others == 0
    }

    /// Counts a request.
    pub fn note(&mut self, host: &str, answer: HostAnswer) {
        let host: String = host.chars().take(MOST_NAME).collect();
        let found = self.hosts.iter().position(|known| known.host == host);
        let place = match found {
            Some(place) => place,
            None if self.hosts.len() == MOST_HOSTS => {
                self.others = self.others.saturating_add(1);
                return;
            }
            None => {
                self.hosts.push(HostUse { host, ..HostUse::default() });
                self.hosts.len() - 1
            }
        };
        let Some(host) = self.hosts.get_mut(place) else { return };
        let count = match answer {
            HostAnswer::Reached => &mut host.reached,
            HostAnswer::Refused => &mut host.refused,
            HostAnswer::Failed => &mut host.failed,
        };
        *count = count.saturating_add(1);
    }

    /// Hosts that were refused.
    pub fn refused(&self) -> impl Iterator<Item = &HostUse> {
        self.hosts.iter().filter(|host| host.refused > 0)
    }
}

impl fmt::Display for HostUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts =
            [(self.reached, "let through"), (self.refused, "refused"), (self.failed, "failed")];
        let told = counts.iter().filter(|(count, _)| *count > 0);
        let told: Vec<_> = told.map(|(count, what)| format!("{count} {what}")).collect();
        write!(f, "{} ({})", self.host, told.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_counted_apart_up_to_a_bound() {
        let mut seen = NetworkUse::default();
        assert!(seen.is_empty());
        for answer in [HostAnswer::Refused, HostAnswer::Reached, HostAnswer::Refused] {
            seen.note("pypi.org:443", answer);
        }
        seen.note("a:1", HostAnswer::Failed);
        assert_eq!(seen.hosts[0].to_string(), "pypi.org:443 (1 let through, 2 refused)");
        assert_eq!(seen.refused().count(), 1);
        for number in 0..1000 {
            seen.note(&format!("{}{number}", "x".repeat(9999)), HostAnswer::Refused);
            seen.note(&format!("h{number}"), HostAnswer::Refused);
        }
        assert_eq!(seen.hosts.len(), MOST_HOSTS);
        assert_eq!(seen.others, 1000 - (MOST_HOSTS as u64 - 3));
        assert!(serde_json::to_string(&seen).unwrap().len() < 8192);
    }
}
