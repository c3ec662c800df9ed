//! What a task gives its agent beside the tools that the agent brings: MCP servers and
//! skills.

use crate::FieldProblem;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};

/// A Model Context Protocol server whose tools the agent may use. With `command` the agent
/// starts it inside the sandbox and speaks to it over stdio; with `url` it is reached over
/// streamable HTTP, which the sandbox's network must allow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct McpServer {
    /// What the agent calls it; part of its tools' names.
    pub name: String,
    /// Program to start, inside the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment variables of the program.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Address of a server that runs already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Headers sent to it with each request.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

/// A skill that the agent may look up: a folder with instructions in a file `SKILL.md`, as
/// the Agent Skills specification describes it. Either its text or a folder of the sandbox
/// is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Skill {
    /// What the agent calls it: lower-case letters, digits and hyphens.
    pub name: String,
    /// The text of `SKILL.md`. It starts with front matter that has the same `name` and a
    /// `description`, by which the agent decides when to read on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// An absolute folder in the sandbox that has a `SKILL.md`, and whatever else belongs to
    /// the skill. It is copied before the agent starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

impl McpServer {
    pub(super) fn check_all(servers: &[Self], problems: &mut Vec<FieldProblem>) {
        let mut names = HashSet::new();
        for (index, server) in servers.iter().enumerate() {
            let at = format!("harness.mcp_servers[{index}]");
            if !names.insert(&server.name) {
                problems.push(twice(&at, &server.name));
            }
            server.check(&at, problems);
        }
    }

    fn check(&self, at: &str, problems: &mut Vec<FieldProblem>) {
        let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
        if self.name.is_empty() || self.name.len() > 64 || !self.name.bytes().all(fits) {
            problems.push(FieldProblem::new(
                format!("{at}.name"),
                "must be up to 64 letters, digits, `_` and `-`",
                r#""database""#,
            ));
        }
        match (&self.command, &self.url) {
            (Some(_), Some(_)) => problems.push(FieldProblem::new(
                at,
                "has both `command` and `url`; keep the one by which it is reached",
                SERVER,
            )),
            (None, None) => problems.push(FieldProblem::new(
                at,
                "needs a `command` to start or a `url` to reach",
                SERVER,
            )),
            (Some(command), None) if command.trim().is_empty() => problems.push(FieldProblem::new(
                format!("{at}.command"),
                "must not be empty",
                r#""python3""#,
            )),
            (None, Some(url)) if !(url.starts_with("http://") || url.starts_with("https://")) => {
                problems.push(FieldProblem::new(
                    format!("{at}.url"),
                    "must start with http:// or https://",
                    r#""http://localhost:3000/mcp""#,
                ));
            }
            _ => {}
        }
        if self.command.is_none() && !(self.args.is_empty() && self.env.is_empty()) {
            let said = "`args` and `env` go with `command`; a `url` takes `headers`";
            problems.push(FieldProblem::new(at, said, SERVER));
        }
        if self.url.is_none() && !self.headers.is_empty() {
            let said = "`headers` go with `url`; a `command` takes `args` and `env`";
            problems.push(FieldProblem::new(at, said, SERVER));
        }
    }
}

impl Skill {
    pub(super) fn check_all(skills: &[Self], problems: &mut Vec<FieldProblem>) {
        let mut names = HashSet::new();
        for (index, skill) in skills.iter().enumerate() {
            let at = format!("harness.skills[{index}]");
            if !names.insert(&skill.name) {
                problems.push(twice(&at, &skill.name));
            }
            skill.check(&at, problems);
        }
    }

    fn check(&self, at: &str, problems: &mut Vec<FieldProblem>) {
        let name = &self.name;
        let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let hyphens = name.starts_with('-') || name.ends_with('-') || name.contains("--");
        if name.is_empty() || name.len() > 64 || hyphens || !name.bytes().all(fits) {
            problems.push(FieldProblem::new(
                format!("{at}.name"),
                "must be up to 64 lower-case letters and digits, with single hyphens between",
                r#""release-notes""#,
            ));
        }
        match (&self.content, &self.path) {
            (Some(_), Some(_)) | (None, None) => problems.push(FieldProblem::new(
                at,
                "needs either `content` or `path`",
                skill_example(name),
            )),
            (Some(content), None) => {
                let said =
                    |key: &str| front_matter(content).find_map(|line| line.strip_prefix(key));
                let at = format!("{at}.content");
                match (said("name:"), said("description:")) {
                    (Some(called), Some(_)) => {
                        let called = called.trim().trim_matches(['"', '\'']);
                        if called != name {
                            problems.push(FieldProblem::new(
                                at,
                                format!("calls the skill {called:?}, and its `name` is {name:?}"),
                                skill_text(name),
                            ));
                        }
                    }
                    _ => problems.push(FieldProblem::new(
                        at,
                        "must start with front matter that has `name` and `description`; \
                         without them no agent program lists the skill",
                        skill_text(name),
                    )),
                }
            }
            (None, Some(path)) if !path.starts_with('/') || path.split('/').any(|p| p == "..") => {
                problems.push(FieldProblem::new(
                    format!("{at}.path"),
                    "must be an absolute folder in the sandbox, without `..`",
                    r#""/opt/skills/release-notes""#,
                ));
            }
            (None, Some(_)) => {}
        }
    }
}

/// The lines between the first two lines of three hyphens, if the first line is one.
fn front_matter(text: &str) -> impl Iterator<Item = &str> {
    let mut lines = text.lines();
    let opened = lines.next().is_some_and(|line| line.trim_end() == "---");
    lines.take_while(move |line| opened && line.trim_end() != "---")
}

fn twice(at: &str, name: &str) -> FieldProblem {
    FieldProblem::new(
        format!("{at}.name"),
        format!("the name {name:?} appears twice"),
        format!("{:?}", format!("{name}-2")),
    )
}

fn skill_text(name: &str) -> String {
    format!("{:?}", format!("---\nname: {name}\ndescription: When to use it.\n---\nWhat to do."))
}

fn skill_example(name: &str) -> String {
    format!(r#"{{"name": "{name}", "content": {}}}"#, skill_text(name))
}

const SERVER: &str = r#"{"name": "database", "command": "python3", "args": ["/opt/server.py"]}"#;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn problems(servers: Value, skills: Value) -> Vec<String> {
        let servers: Vec<McpServer> = serde_json::from_value(servers).unwrap();
        let skills: Vec<Skill> = serde_json::from_value(skills).unwrap();
        let mut problems = Vec::new();
        McpServer::check_all(&servers, &mut problems);
        Skill::check_all(&skills, &mut problems);
        problems.into_iter().map(|problem| problem.field).collect()
    }

    #[test]
    fn what_no_agent_could_use_is_named_by_its_field() {
        let at = |place: &str| vec![format!("harness.{place}")];
        let good = json!([{"name": "a", "command": "x", "args": ["y"], "env": {"K": "v"}},
            {"name": "b", "url": "http://h/mcp", "headers": {"K": "v"}}]);
        assert!(problems(good, json!([])).is_empty());
        for (server, field) in [
            (json!({"name": "a"}), "mcp_servers[0]"),
            (json!({"name": "a", "command": "x", "url": "http://h"}), "mcp_servers[0]"),
            (json!({"name": "a b", "command": "x"}), "mcp_servers[0].name"),
            (json!({"name": "a", "command": " "}), "mcp_servers[0].command"),
            (json!({"name": "a", "url": "h:80"}), "mcp_servers[0].url"),
            (json!({"name": "a", "url": "http://h", "args": ["x"]}), "mcp_servers[0]"),
            (json!({"name": "a", "command": "x", "headers": {"K": "v"}}), "mcp_servers[0]"),
        ] {
            assert_eq!(problems(json!([server]), json!([])), at(field), "{server}");
        }
        let twice = json!([{"name": "a", "command": "x"}, {"name": "a", "command": "y"}]);
        assert_eq!(problems(twice, json!([])), at("mcp_servers[1].name"));
    }

    #[test]
    fn what_is_no_skill_is_named_by_its_field() {
        let at = |place: &str| vec![format!("harness.{place}")];
        let text = "---\nname: a\ndescription: d\n---\nDo it.";
        let good = json!([{"name": "a", "content": text}, {"name": "b-2", "path": "/opt/b"}]);
        assert!(problems(json!([]), good).is_empty());
        for (skill, field) in [
            (json!({"name": "a"}), "skills[0]"),
            (json!({"name": "a", "content": text, "path": "/b"}), "skills[0]"),
            (json!({"name": "../a", "path": "/b"}), "skills[0].name"),
            (json!({"name": "a", "content": "Do it."}), "skills[0].content"),
            (
                json!({"name": "a", "content": "---\nname: a\n---\ndescription: d"}),
                "skills[0].content",
            ),
            (json!({"name": "a", "path": "b"}), "skills[0].path"),
            (json!({"name": "a", "path": "/b/../../etc"}), "skills[0].path"),
        ] {
            assert_eq!(problems(json!([]), json!([skill])), at(field), "{skill}");
        }
    }
}
