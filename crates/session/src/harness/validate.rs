//! Checks beyond the shape: what would only fail once a session runs.

use super::adapter::{HarnessAdapter, Setting, Template};
use super::install::PythonVersion;
use super::recipe::{npm_pin, pip_pin};
use super::render::{VARIABLES, environment};
use minijinja::Environment;
use polar_types::{FieldProblem, HarnessSpec};
use serde_json::Value;
use std::collections::HashSet;

/// What is wrong, and under which top-level key.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) key: &'static str,
    pub(super) problem: String,
    pub(super) mend: String,
}

fn problem(key: &'static str, problem: impl Into<String>, mend: impl Into<String>) -> Problem {
    Problem { key, problem: problem.into(), mend: mend.into() }
}

/// Refuses what is no regular expression.
fn pattern(key: &'static str, text: &str) -> Result<(), Problem> {
    let Err(error) = regex::Regex::new(text) else { return Ok(()) };
    let reason = error.to_string();
    let reason = reason.lines().last().unwrap_or_default().trim();
    Err(problem(
        key,
        format!("the pattern {text:?} is no regular expression: {reason}"),
        "mend the pattern; backslashes need single quotes in YAML",
    ))
}

impl HarnessAdapter {
    /// Checks values and templates. Every variable a template reads is looked up, so
    /// that a typing error shows here and not in the first session.
    pub(super) fn validate(&self) -> Result<(), Problem> {
        self.check_names()?;
        self.check_install()?;
        self.check_settings()?;
        self.check_templates()?;
        self.check_success()?;
        self.check_roles()?;
        self.check_normalisation()
    }

    fn check_names(&self) -> Result<(), Problem> {
        let plain = |text: &str| {
            !text.is_empty()
                && text.len() <= 64
                && text
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
                && !text.starts_with('.')
        };
        if !plain(&self.name) {
            return Err(problem(
                "name",
                format!("`name` is {:?}", self.name),
                "use up to 64 letters, digits, `_`, `-` and `.`",
            ));
        }
        if !plain(&self.version) {
            return Err(problem(
                "version",
                format!("`version` is {:?}", self.version),
                "write the program's version, for example \"1.6.0\"",
            ));
        }
        if self.model.trim().is_empty() {
            return Err(problem("model", "`model` is empty", "write a default model name"));
        }
        if self.command.is_empty() {
            return Err(problem(
                "command",
                "`command` is empty",
                "list the program and its arguments, for example [my-agent, --headless]",
            ));
        }
        for name in self.env_vars.keys() {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(problem(
                    "env_vars",
                    format!("`env_vars` has the name {name:?}"),
                    "use a name without `=`",
                ));
            }
        }
        Ok(())
    }

    fn check_install(&self) -> Result<(), Problem> {
        let Some(recipe) = &self.install else { return Ok(()) };
        if recipe.npm.is_empty() && recipe.pip.is_empty() {
            return Err(problem(
                "install",
                "`install` lists no packages",
                "list some under `npm` or `pip`, or leave `install` out when the program is in \
                 the sandbox already",
            ));
        }
        let npm = recipe.npm.iter().find(|package| npm_pin(package).is_none());
        let pip = recipe.pip.iter().find(|package| pip_pin(package).is_none());
        if let Some(package) = npm.or(pip) {
            let example = if npm.is_some() { "some-agent@1.2.3" } else { "some-agent==1.2.3" };
            return Err(problem(
                "install",
                format!("the package {package:?} has no exact version"),
                format!(
                    "pin it, for example \"{example}\"; without a pin, the version depends on \
                     the day and the machine"
                ),
            ));
        }
        if let Some(python) = &recipe.python
            && PythonVersion::parse(python).is_none()
        {
            return Err(problem(
                "install",
                format!("`install.python` is {python:?}"),
                "write the oldest version that runs the program, for example \"3.12\"",
            ));
        }
        for path in &recipe.expect {
            if path.is_empty() || path.starts_with('/') || path.split('/').any(|p| p == "..") {
                return Err(problem(
                    "install",
                    format!("`install.expect` has the path {path:?}"),
                    "write a path relative to the installation, without `..`",
                ));
            }
        }
        Ok(())
    }

    fn check_settings(&self) -> Result<(), Problem> {
        for (name, setting) in &self.settings {
            if !is_identifier(name) {
                return Err(problem(
                    "settings",
                    format!("`settings` has the name {name:?}"),
                    "use letters, digits and `_`, so that templates can say settings.NAME",
                ));
            }
            if let Some(choices) = &setting.choices
                && !choices.contains(&setting.default)
            {
                return Err(problem(
                    "settings",
                    format!("the default of `settings.{name}` is not among its choices"),
                    format!("use one of {}", list(choices)),
                ));
            }
        }
        Ok(())
    }

    fn check_templates(&self) -> Result<(), Problem> {
        let environment = environment();
        let checker = Checker { environment: &environment, adapter: self };
        self.templates().into_iter().try_for_each(|(key, template)| match template {
            Template::Text(text) => checker.template(key, text),
            Template::Condition(text) => checker.expression(key, text),
        })
    }

    /// Whether its program can be told of MCP servers: whether a template reads them.
    pub fn takes_mcp_servers(&self) -> bool {
        let environment = environment();
        self.templates().into_iter().any(|(_, template)| {
            let used = match template {
                Template::Text(text) => environment
                    .template_from_str(text)
                    .map(|template| template.undeclared_variables(false)),
                Template::Condition(text) => environment
                    .compile_expression(text)
                    .map(|expression| expression.undeclared_variables(false)),
            };
            used.is_ok_and(|used| used.contains("mcp_servers"))
        })
    }

    /// Whether its program looks skills up.
    pub fn takes_skills(&self) -> bool {
        self.skills_folder.is_some()
    }

    fn check_success(&self) -> Result<(), Problem> {
        if self.success.exit_codes.is_empty() {
            return Err(problem(
                "success",
                "`success.exit_codes` is empty, so that no run could succeed",
                "list at least one, usually [0]",
            ));
        }
        self.success.failures.iter().try_for_each(|failure| pattern("success", &failure.pattern))
    }

    fn check_roles(&self) -> Result<(), Problem> {
        for rule in &self.roles {
            if rule.when.is_empty() {
                return Err(problem(
                    "roles",
                    format!("the rule {:?} has an empty `when`, which every call fits", rule.name),
                    "say by what such calls are told, for example `headers` or `system`",
                ));
            }
            rule.when.patterns().try_for_each(|(_, text)| pattern("roles", text))?;
        }
        Ok(())
    }

    fn check_normalisation(&self) -> Result<(), Problem> {
        self.normalise.iter().try_for_each(|rule| pattern("normalise", &rule.pattern))
    }

    /// What is wrong with a task's names of rules to leave out, and what to write.
    pub(super) fn refuses_keeping(&self, keep: &[String]) -> Option<(String, String)> {
        let normalise = self.normalise.iter().map(|rule| rule.name.as_str());
        let stand_ins = self.stand_ins.iter().map(|rule| rule.name.as_str());
        let rules: Vec<_> = normalise.chain(stand_ins).collect();
        let unknown = keep.iter().find(|name| !rules.contains(&name.as_str()))?;
        let mend = match rules.is_empty() {
            true => format!("{} has none; leave `keep` out", self.name),
            false => format!("use one of {}", rules.join(", ")),
        };
        Some((format!("no rule of `normalise` or `stand_ins` is called {unknown:?}"), mend))
    }

    /// Checks what a task sets against what the adapter declares, and fills in defaults.
    pub fn resolve_settings(
        &self,
        given: &serde_json::Map<String, Value>,
    ) -> Result<serde_json::Map<String, Value>, super::AdapterError> {
        for (name, value) in given {
            if let Some((problem, mend)) = self.refuses_setting(name, value) {
                return Err(super::AdapterError::new(&self.name, None, problem, mend));
            }
        }
        let value_of = |(name, setting): (&String, &Setting)| {
            (name.clone(), given.get(name).unwrap_or(&setting.default).clone())
        };
        Ok(self.settings.iter().map(value_of).collect())
    }
}

impl HarnessAdapter {
    /// What is wrong with a harness that a task asks for, field by field, before anything
    /// of it runs: an adapter that it brings, and settings that the adapter does not have.
    pub fn problems_of(spec: &HarnessSpec) -> Vec<FieldProblem> {
        let adapter = match Self::of_spec(spec) {
            Ok(adapter) => adapter,
            Err(error) => {
                let said = format!("{}; {}", error.problem, error.mend);
                return vec![FieldProblem::new("harness.adapter", said, SMALLEST_ADAPTER)];
            }
        };
        let mut problems = adapter.refuses_extras(spec);
        problems.extend(spec.settings.iter().filter_map(|(name, value)| {
            let (problem, mend) = adapter.refuses_setting(name, value)?;
            let default = adapter.settings.get(name).map(|setting| setting.default.to_string());
            let example = default.unwrap_or_else(|| "{}".to_owned());
            let field = format!("harness.settings.{name}");
            Some(FieldProblem::new(field, format!("{problem}; {mend}"), example))
        }));
        problems.extend(adapter.refuses_keeping(&spec.keep).map(|(problem, mend)| {
            FieldProblem::new("harness.keep", format!("{problem}; {mend}"), "[]")
        }));
        problems
    }

    /// What the task gives that its program has no use for.
    fn refuses_extras(&self, spec: &HarnessSpec) -> Vec<FieldProblem> {
        let takers = |takes: fn(&Self) -> bool| {
            let all = Self::list().unwrap_or_default();
            let names = all.into_iter().filter(takes).map(|adapter| adapter.name);
            names.collect::<Vec<_>>().join(", ")
        };
        let refuse = |field: &str, what: &str, takes: fn(&Self) -> bool| {
            let problem = format!(
                "{} takes no {what}; leave them out, or use one of {}",
                self.name,
                takers(takes)
            );
            FieldProblem::new(field, problem, "[]")
        };
        let servers = !spec.mcp_servers.is_empty() && !self.takes_mcp_servers();
        let skills = !spec.skills.is_empty() && !self.takes_skills();
        let servers =
            servers.then(|| refuse("harness.mcp_servers", "MCP servers", Self::takes_mcp_servers));
        let skills = skills.then(|| refuse("harness.skills", "skills", Self::takes_skills));
        servers.into_iter().chain(skills).collect()
    }

    /// What is wrong with one setting, and what to do about it.
    fn refuses_setting(&self, name: &str, value: &Value) -> Option<(String, String)> {
        let Some(setting) = self.settings.get(name) else {
            let known: Vec<_> = self.settings.keys().map(String::as_str).collect();
            let mend = match known.as_slice() {
                [] => "it has no settings; leave them out".to_owned(),
                known => super::parse::mend_unknown(name, known),
            };
            return Some((format!("{} has no setting `{name}`", self.name), mend));
        };
        let wanted = setting.refuses(value)?;
        Some((format!("the setting `{name}` cannot be {value}"), wanted))
    }
}

/// An adapter with all that one must have.
const SMALLEST_ADAPTER: &str = r#"{"name": "mine", "version": "1.0.0", "provider": "openai_chat", "model": "default", "command": ["mine"]}"#;

impl Setting {
    /// What to write instead of `value`, when it is not allowed.
    fn refuses(&self, value: &Value) -> Option<String> {
        if let Some(choices) = &self.choices {
            return (!choices.contains(value)).then(|| format!("use one of {}", list(choices)));
        }
        let same_type = matches!(
            (&self.default, value),
            (Value::Bool(_), Value::Bool(_))
                | (Value::Number(_), Value::Number(_))
                | (Value::String(_), Value::String(_))
                | (Value::Array(_), Value::Array(_))
                | (Value::Object(_), Value::Object(_))
                | (Value::Null, _)
        );
        (!same_type).then(|| format!("use a value of the same type as {}", self.default))
    }
}

struct Checker<'a> {
    environment: &'a Environment<'static>,
    adapter: &'a HarnessAdapter,
}

impl Checker<'_> {
    fn template(&self, key: &'static str, text: &str) -> Result<(), Problem> {
        let template = self.environment.template_from_str(text).map_err(|error| {
            problem(
                key,
                format!("the template {:?} in `{key}` is malformed: {error}", shorten(text)),
                "mend the template, for example \"{{ base_url }}/v1\"",
            )
        })?;
        self.variables(key, text, template.undeclared_variables(true))
    }

    fn expression(&self, key: &'static str, text: &str) -> Result<(), Problem> {
        let expression = self.environment.compile_expression(text).map_err(|error| {
            problem(
                key,
                format!("the condition {text:?} in `{key}` is malformed: {error}"),
                "write an expression without braces, for example `settings.bare`",
            )
        })?;
        self.variables(key, text, expression.undeclared_variables(true))
    }

    fn variables(
        &self,
        key: &'static str,
        text: &str,
        used: HashSet<String>,
    ) -> Result<(), Problem> {
        let mut used: Vec<_> = used.into_iter().collect();
        used.sort();
        for name in used {
            let known = match name.strip_prefix("settings.") {
                Some(setting) => self.adapter.settings.contains_key(setting),
                None => VARIABLES.contains(&name.as_str()),
            };
            let unset_install = name == "install" && self.adapter.install.is_none();
            if !known || unset_install {
                let settings = self.adapter.settings.keys().map(|name| format!("settings.{name}"));
                let names: Vec<_> =
                    VARIABLES.iter().map(|name| (*name).to_owned()).chain(settings).collect();
                return Err(problem(
                    key,
                    format!("{:?} in `{key}` reads the unknown variable `{name}`", shorten(text)),
                    if unset_install {
                        "add `install`, or call the program by the name it has in the sandbox"
                            .to_owned()
                    } else {
                        format!("known are {}", names.join(", "))
                    },
                ));
            }
        }
        Ok(())
    }
}

fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn list(values: &[Value]) -> String {
    values.iter().map(Value::to_string).collect::<Vec<_>>().join(", ")
}

fn shorten(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    match line.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}
