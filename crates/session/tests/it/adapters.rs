//! Adapters load, refuse what is wrong with the line and the mend, and render.

use polar_session::HarnessAdapter;
use polar_session::harness::{RenderInput, RenderedHarness};
use polar_types::HarnessSpec;
use serde_json::{Map, Value, json};
use std::path::Path;

const MINIMAL: &str = "\
name: mine
version: 1.0.0
provider: openai_chat
model: polar
command: [my-agent, '{{ instruction }}']
";

fn render(adapter: &HarnessAdapter, instruction: &str, settings: Value) -> RenderedHarness {
    render_with(adapter, instruction, settings, &HarnessSpec::named("any"))
}

/// With the MCP servers and skills of a spec.
fn render_with(
    adapter: &HarnessAdapter,
    instruction: &str,
    settings: Value,
    spec: &HarnessSpec,
) -> RenderedHarness {
    let Value::Object(settings) = settings else { panic!("settings are an object") };
    adapter
        .render(RenderInput {
            base_url: "http://127.0.0.1:9000",
            api_key: "polar-secret",
            model: None,
            instruction,
            command: "python agent.py",
            home: "/home/agent",
            workdir: "/workspace",
            install: Some(Path::new("/cache/x")),
            session_id: "t-s0",
            context_window: 32_768,
            max_output_tokens: 8_192,
            mcp_servers: &spec.mcp_servers,
            skills: &spec.skills,
            settings: &settings,
        })
        .unwrap()
}

/// Run with `POLAR_WRITE_DOCS=1`, it writes the table instead.
#[test]
fn documentation_has_what_an_agent_of_ones_own_finds_in_its_environment() {
    let shell = HarnessAdapter::shipped("shell").unwrap();
    let variables = serde_json::to_value(&shell).unwrap()["env_vars"].clone();
    let mut table = "| variable | is |\n| --- | --- |\n".to_owned();
    for (name, value) in variables.as_object().unwrap() {
        table.push_str(&format!("| `{name}` | `{}` |\n", value.as_str().unwrap()));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tasks.md");
    let document = std::fs::read_to_string(path).unwrap();
    let (begin, end) = ("<!-- shell -->\n", "<!-- /shell -->");
    let (before, rest) = document.split_once(begin).unwrap();
    let (found, after) = rest.split_once(end).unwrap();
    if std::env::var_os("POLAR_WRITE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{begin}{table}{end}{after}")).unwrap();
        return;
    }
    assert_eq!(found, table, "run this test with POLAR_WRITE_DOCS=1");
}

#[test]
fn shipped_adapters_load() {
    let adapters = HarnessAdapter::list().unwrap();
    let names: Vec<_> = adapters.iter().map(|adapter| adapter.name.as_str()).collect();
    assert_eq!(names, HarnessAdapter::names());
    assert_eq!(
        names,
        [
            "claude_code",
            "codex",
            "gemini_cli",
            "mini_swe_agent",
            "opencode",
            "openhands",
            "pi",
            "qwen_code",
            "shell"
        ]
    );
    for adapter in &adapters {
        assert!(!adapter.description.is_empty(), "{} describes itself", adapter.name);
        let json = serde_json::to_value(adapter).unwrap();
        let again = HarnessAdapter::from_json("inline", &json).unwrap();
        assert_eq!(&again, adapter, "the inline form says the same");
    }
}

#[test]
fn mistakes_name_the_line_and_the_mend() {
    let table: &[(&str, &str, Option<u64>, &str, &str)] = &[
        ("an unknown key", "stdinn: x\n", Some(6), "stdinn", "did you mean `stdin`"),
        (
            "an unknown key deep down",
            "success: {exit_code: [0]}\n",
            Some(6),
            "exit_code",
            "exit_codes",
        ),
        ("a key twice", "model: other\n", Some(6), "model", "keep one"),
        ("a wrong type", "files: nothing\n", Some(6), "expected sequence", "mend the YAML"),
        (
            "an unknown key in an argument",
            "env_vars: {A: {if: x, value: y}}\n",
            Some(6),
            "if",
            "when",
        ),
        (
            "an unpinned package",
            "install: {npm: [some-agent]}\n",
            Some(6),
            "no exact version",
            "@1.2.3",
        ),
        ("a version range", "install: {npm: [\"a@^1.2.3\"]}\n", Some(6), "no exact version", "pin"),
        ("a tag", "install: {npm: [a@latest]}\n", Some(6), "no exact version", "pin"),
        (
            "an escape",
            "install: {npm: [a@1.2.3], expect: [../x]}\n",
            Some(6),
            "../x",
            "without `..`",
        ),
        (
            "an unknown variable",
            "stdin: '{{ instructions }}'\n",
            Some(6),
            "`instructions`",
            "instruction",
        ),
        ("an unknown setting", "stdin: '{{ settings.x }}'\n", Some(6), "`settings.x`", "known are"),
        ("no installation", "stdin: '{{ install }}'\n", Some(6), "`install`", "add `install`"),
        ("a malformed template", "stdin: '{{ model'\n", Some(6), "malformed", "mend the template"),
        (
            "a malformed condition",
            "env_vars: {A: {when: 'model ==', value: y}}\n",
            Some(6),
            "malformed",
            "without braces",
        ),
        (
            "a malformed pattern",
            "success: {failures: [{pattern: '(', meaning: x}]}\n",
            Some(6),
            "no regular expression",
            "mend the pattern",
        ),
        (
            "a malformed pattern of a role",
            "roles: [{name: t, role: title, when: {system: '('}}]\n",
            Some(6),
            "no regular expression",
            "mend the pattern",
        ),
        (
            "a role of everything",
            "roles: [{name: t, role: title, when: {}}]\n",
            Some(6),
            "empty `when`",
            "headers",
        ),
        (
            "an unknown role",
            "roles: [{name: t, role: titel, when: {}}]\n",
            Some(6),
            "titel",
            "title",
        ),
        (
            "a malformed pattern of a normalisation",
            "normalise: [{name: n, description: d, part: system, pattern: '['}]\n",
            Some(6),
            "no regular expression",
            "mend the pattern",
        ),
        ("no exit code", "success: {exit_codes: []}\n", Some(6), "exit_codes", "[0]"),
        (
            "a default outside the choices",
            "settings: {a: {default: x, description: d, choices: [z]}}\n",
            Some(6),
            "settings.a",
            "\"z\"",
        ),
        (
            "a bad setting name",
            "settings: {a-b: {default: x, description: d}}\n",
            Some(6),
            "a-b",
            "_",
        ),
        ("broken YAML", "stdin: 'no end\n", None, "", "mend the YAML"),
    ];
    for (what, addition, line, problem, mend) in table {
        let text = format!("{MINIMAL}{addition}");
        let error = HarnessAdapter::from_yaml("mine.yaml", &text)
            .expect_err(&format!("{what} was accepted"));
        if line.is_some() {
            assert_eq!(error.line, *line, "{what}: {error}");
        }
        assert!(error.problem.contains(problem), "{what}: {error}");
        assert!(error.mend.contains(mend), "{what}: {error}");
        assert!(error.to_string().starts_with("mine.yaml"), "{what}: {error}");
    }
}

#[test]
fn a_missing_key_is_named() {
    for key in ["name", "version", "provider", "model", "command"] {
        let text: String =
            MINIMAL.lines().filter(|l| !l.starts_with(key)).map(|l| format!("{l}\n")).collect();
        let error = HarnessAdapter::from_yaml("mine.yaml", &text).unwrap_err();
        assert!(error.problem.contains(key), "{error}");
        assert!(error.mend.contains(&format!("add `{key}")), "{error}");
    }
}

#[test]
fn an_unknown_name_lists_the_known_ones() {
    let error = HarnessAdapter::of_spec(&HarnessSpec::named("claude")).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("claude_code, codex, gemini_cli, mini_swe_agent, opencode, openhands, pi"),
        "{error}"
    );
}

#[test]
fn an_inline_adapter_goes_before_a_shipped_one() {
    let mut inline = serde_json::to_value(HarnessAdapter::shipped("pi").unwrap()).unwrap();
    inline["model"] = json!("another");
    let spec = HarnessSpec { adapter: Some(inline.clone()), ..HarnessSpec::named("pi") };
    assert_eq!(HarnessAdapter::of_spec(&spec).unwrap().model, "another");

    let spec = HarnessSpec { adapter: Some(inline.clone()), ..HarnessSpec::named("other") };
    assert!(HarnessAdapter::of_spec(&spec).unwrap_err().mend.contains("same name"));

    inline["colour"] = json!("blue");
    let spec = HarnessSpec { adapter: Some(inline), ..HarnessSpec::named("pi") };
    let error = HarnessAdapter::of_spec(&spec).unwrap_err();
    assert!(error.problem.contains("colour"), "{error}");
}

#[test]
fn an_adapter_comes_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.yaml");
    std::fs::write(&path, MINIMAL).unwrap();
    assert_eq!(HarnessAdapter::from_file(&path).unwrap().name, "mine");
    let error = HarnessAdapter::from_file(&folder.path().join("absent.yaml")).unwrap_err();
    assert!(error.to_string().contains("absent.yaml"), "{error}");
}

#[test]
fn settings_are_checked_against_the_adapter() {
    let adapter = HarnessAdapter::shipped("pi").unwrap();
    let settings = |value: Value| value.as_object().cloned().unwrap();
    let resolved =
        adapter.resolve_settings(&settings(json!({"reasoning_effort": "high"}))).unwrap();
    assert_eq!(resolved["reasoning_effort"], "high");
    assert_eq!(resolved["max_output_tokens"], 0, "defaults are filled in");
    for (bad, mend) in [
        (json!({"reasoning": "high"}), "`reasoning_effort`"),
        (json!({"reasoning_effort": "very"}), "\"medium\""),
        (json!({"max_output_tokens": "many"}), "same type"),
    ] {
        let error = adapter.resolve_settings(&settings(bad)).unwrap_err();
        assert!(error.mend.contains(mend), "{error}");
    }
    let shell = HarnessAdapter::shipped("shell").unwrap();
    assert!(
        shell
            .resolve_settings(&settings(json!({"a": 1})))
            .unwrap_err()
            .mend
            .contains("no settings")
    );
}

#[test]
fn pi_gets_its_gateway_by_file_and_its_secret_by_environment() {
    let adapter = HarnessAdapter::shipped("pi").unwrap();
    let harness = render(&adapter, "Fix \"it\"\n{{ model }}", json!({}));
    assert_eq!(harness.stdin, b"Fix \"it\"\n{{ model }}", "the instruction is no template");
    assert_eq!(harness.env["POLAR_API_KEY"], "polar-secret");
    let models: Value = serde_json::from_str(&harness.files[0].content).unwrap();
    let provider = &models["providers"]["polar"];
    assert_eq!(provider["baseUrl"], "http://127.0.0.1:9000/v1");
    assert_eq!(provider["models"][0]["contextWindow"], 32_768);
    assert_eq!(provider["models"][0]["maxTokens"], 8_192);
    assert_eq!(provider["models"][0]["reasoning"], false);
    let written: String = harness.files.iter().map(|file| file.content.as_str()).collect();
    assert!(!written.contains("polar-secret"), "the secret is in no file");
    assert!(!harness.argv.iter().any(|arg| arg.contains("polar-secret")), "nor in arguments");
}

#[test]
fn claude_code_gets_the_smallest_clean_set_up() {
    let adapter = HarnessAdapter::shipped("claude_code").unwrap();
    let harness = render(&adapter, "Fix it", json!({"max_turns": 7}));
    assert_eq!(harness.stdin, b"Fix it");
    assert_eq!(harness.env["ANTHROPIC_BASE_URL"], "http://127.0.0.1:9000");
    assert_eq!(harness.env["ANTHROPIC_API_KEY"], "polar-secret");
    assert_eq!(harness.env["CLAUDE_CODE_ATTRIBUTION_HEADER"], "0");
    assert_eq!(harness.env["ENABLE_TOOL_SEARCH"], "false");
    assert_eq!(harness.env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"], "32768");
    assert_eq!(harness.env["CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS"], "1");
    let has = |flag: &str, value: &str| harness.argv.windows(2).any(|w| w == [flag, value]);
    assert!(has("--model", "claude-sonnet-4-5"));
    assert!(has("--tools", "Bash,Edit,Write,Read"));
    assert!(has("--max-turns", "7"));
    assert!(!harness.argv.iter().any(|arg| arg == "--bare" || arg == "--output-format"));
    assert!(!harness.argv.iter().any(|arg| arg.contains("polar-secret")));

    let all = render(&adapter, "Fix it", json!({"tools": "", "minimal": false}));
    assert!(!all.argv.iter().any(|arg| arg == "--tools"));
    assert!(!all.env.contains_key("CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS"));
}

/// A request as Claude Code sends it.
fn claude_codes_request() -> polar_convo::Request {
    let line = "x-anthropic-billing-header: cc_version=2.1.332.8f3; cc_entrypoint=sdk-cli;";
    let texts = [line, "You are Claude Code.", "Use the tools."];
    let system: Vec<_> = texts.iter().map(|text| json!({"type": "text", "text": text})).collect();
    let body = json!({"model": "m", "max_tokens": 8, "system": system,
        "messages": [{"role": "user", "content": line}]});
    polar_convo::Dialect::Messages.decode_request(body.to_string().as_bytes()).unwrap()
}

#[test]
fn claude_codes_billing_line_is_taken_out_by_a_rule_that_a_task_can_switch_off() {
    let adapter = HarnessAdapter::shipped("claude_code").unwrap();
    for (keep, applied) in [(vec![], json!({"billing_line": 1})), (vec!["billing_line"], json!({}))]
    {
        let keep: Vec<_> = keep.into_iter().map(str::to_owned).collect();
        let rules = polar_convo::Normaliser::new(&adapter.rules(&keep).normalise).unwrap();
        let mut request = claude_codes_request();
        assert_eq!(json!(rules.apply(&mut request)), applied);
        let messages = polar_convo::chat_messages(&request);
        let system = messages[0]["content"].to_string();
        assert_eq!(system.contains("x-anthropic-billing-header"), !keep.is_empty(), "{system}");
        assert!(system.contains("You are Claude Code."), "{system}");
        // What the user says is the user's.
        assert!(messages[1]["content"].to_string().contains("cc_version"));
    }
}

#[test]
fn a_summary_that_a_sub_agent_asks_for_is_a_summary() {
    let ask = |text: &str| json!({"role": "user", "content": text});
    let asked = ask("Your task is to create a detailed summary of the conversation so far.");
    assert_summary_of_sub_agent("claude_code", "x-claude-code-agent-id", vec![asked], true);
    let system = "You are a context summarization agent.";
    let asked = vec![json!({"role": "system", "content": system}), ask("x")];
    assert_summary_of_sub_agent("opencode", "x-parent-session-id", asked, false);
}

fn assert_summary_of_sub_agent(
    harness: &str,
    header_of_sub_agents: &str,
    summary: Vec<Value>,
    with_tools: bool,
) {
    let rules = HarnessAdapter::shipped(harness).unwrap().rules(&[]);
    let tools = json!([{"type": "function", "function": {"name": "Read"}}]);
    let work = vec![json!({"role": "user", "content": "find the failing test"})];
    let prompts = [(work, Some(tools.clone())), (summary, with_tools.then_some(tools))];
    let calls = prompts.map(|(messages, tools)| polar_record::CallRecord {
        meta: polar_record::CallMeta {
            call_id: polar_types::CallId::of_index(0),
            dialect: "messages".to_owned(),
            stream: true,
            model: "policy".to_owned(),
            started_at_ms: 0,
            duration_ms: 0,
            sampled_tokens: 1,
            prompt_tokens: 1,
            cached_tokens: None,
            finish_reason: "stop".to_owned(),
            engine_finish: "stop".to_owned(),
            weight_versions: Vec::new(),
            sampling: json!({}),
            logprob_mode: "raw".to_owned(),
            extra: Map::new(),
            error: None,
            headers: [(header_of_sub_agents.to_owned(), "a1".to_owned())].into(),
            fingerprint: None,
        },
        messages,
        tools,
        reply: json!({"role": "assistant", "content": "x"}),
        prompt_ids: Some(vec![1]),
        sampled_ids: Some(vec![2]),
        logprobs: vec![Some(-1.0)],
    });
    let header = polar_record::SessionHeader {
        session_id: "a-s0".parse().unwrap(),
        task_id: "a".parse().unwrap(),
        group_id: "a-g".parse().unwrap(),
        attempt: 1,
        epoch: 0,
        created_at_ms: 0,
        engine: Value::Null,
        rules,
    };
    let calls = calls.iter().map(|call| (call, Some(true)));
    let session = polar_record::RecordedSession::from_calls(&header, calls).unwrap();
    let strategy = polar_types::TrajectoryStrategy::PrefixMerging;
    let built = polar_trajectory::build(&session, strategy, None);
    let roles: Vec<_> =
        built.calls.iter().filter_map(|call| call.origin.as_ref().map(|o| o.role)).collect();
    assert_eq!(
        roles,
        [polar_types::CallRole::SubAgent, polar_types::CallRole::Summary],
        "{harness}"
    );
}

#[test]
fn codex_gets_a_gateway_of_its_own_and_no_others() {
    let adapter = HarnessAdapter::shipped("codex").unwrap();
    let harness = render(&adapter, "Fix it", json!({"reasoning_effort": "high"}));
    assert_eq!(harness.stdin, b"Fix it");
    assert_eq!(harness.env["POLAR_API_KEY"], "polar-secret");
    let [config] = harness.files.as_slice() else { panic!("one file") };
    assert_eq!(config.path, format!("{}/config.toml", harness.env["CODEX_HOME"]));
    for line in [
        "model = \"polar\"",
        "model_provider = \"polar\"",
        "model_context_window = 32768",
        "model_reasoning_effort = \"high\"",
        "check_for_update_on_startup = false",
        "web_search = \"disabled\"",
        "enabled = false",
        "base_url = \"http://127.0.0.1:9000/v1\"",
        "wire_api = \"responses\"",
    ] {
        assert!(config.content.lines().any(|said| said == line), "{line}: {}", config.content);
    }
    let disabled = |name: &str| harness.argv.windows(2).any(|w| w == ["--disable", name]);
    assert!(disabled("plugins") && disabled("multi_agent") && disabled("goals"));
    assert!(!config.content.contains("polar-secret"), "the secret is in no file");
    assert!(!harness.argv.iter().any(|arg| arg.contains("polar-secret")), "nor in arguments");

    let all = render(&adapter, "Fix it", json!({"minimal": false}));
    assert!(!all.argv.iter().any(|arg| arg == "multi_agent"));
    assert!(!all.files[0].content.contains("model_reasoning_effort"));
}

#[test]
fn gemini_cli_compacts_before_the_engines_window_is_full() {
    let adapter = HarnessAdapter::shipped("gemini_cli").unwrap();
    let harness = render(&adapter, "Fix it", json!({"compact_at": 0.5}));
    assert_eq!(harness.stdin, b"Fix it");
    assert_eq!(harness.env["GEMINI_API_KEY"], "polar-secret");
    assert_eq!(harness.env["GOOGLE_GEMINI_BASE_URL"], "http://127.0.0.1:9000");
    let [settings] = harness.files.as_slice() else { panic!("one file") };
    let settings: Value = serde_json::from_str(&settings.content).unwrap();
    // It takes every window for one of 1048576 tokens.
    assert_eq!(settings["model"]["compressionThreshold"], 0.5 * 32768.0 / 1_048_576.0);
    assert_eq!(settings["tools"]["exclude"], json!(["google_web_search", "web_fetch"]));
    assert_eq!(settings["security"]["auth"]["selectedType"], "gemini-api-key");
    let has = |flag: &str, value: &str| harness.argv.windows(2).any(|w| w == [flag, value]);
    assert!(has("--model", "gemini-2.5-pro") && has("--output-format", "text"));
    assert!(!harness.argv.iter().any(|arg| arg.contains("polar-secret")));
}

#[test]
fn instructions_of_any_length_stay_out_of_arguments_and_environment() {
    let long = "x".repeat(4 << 20);
    for adapter in HarnessAdapter::list().unwrap() {
        let harness = render(&adapter, &long, Value::Object(Map::new()));
        let most = harness.argv.iter().chain(harness.env.values()).map(String::len).max();
        assert!(most < Some(4096), "{} puts it where the kernel limits it", adapter.name);
        let files = harness.files.iter().map(|file| file.content.len());
        let longest = files.chain([harness.stdin.len()]).max();
        assert!(longest >= Some(long.len()), "{} is not given it whole", adapter.name);
    }
}

#[test]
fn the_shell_harness_runs_the_task_s_command() {
    let adapter = HarnessAdapter::shipped("shell").unwrap();
    let harness = render(&adapter, "Fix it", json!({}));
    assert_eq!(harness.argv, ["sh", "-c", "python agent.py"]);
    assert_eq!(harness.env["OPENAI_BASE_URL"], "http://127.0.0.1:9000/v1");
    assert_eq!(harness.env["ANTHROPIC_BASE_URL"], "http://127.0.0.1:9000");
    assert_eq!(harness.env["POLAR_INSTRUCTION_FILE"], harness.files[0].path);
}

/// A spec with one server of each kind and one skill of each kind.
fn equipped() -> HarnessSpec {
    serde_json::from_value(json!({
        "name": "any",
        "mcp_servers": [
            {"name": "local", "command": "run-it", "args": ["-x", "a \"b\""], "env": {"K.1": "v'"}},
            {"name": "far", "url": "https://host/mcp", "headers": {"X-Key": "secret"}},
        ],
        "skills": [
            {"name": "told", "content": "---\nname: told\ndescription: d\n---\nDo {{ it }}."},
            {"name": "kept", "path": "/opt/kept"},
        ],
    }))
    .unwrap()
}

/// The file among those of a harness whose path ends so, as JSON.
fn json_file(harness: &RenderedHarness, end: &str) -> Value {
    let file = harness.files.iter().find(|file| file.path.ends_with(end)).unwrap();
    serde_json::from_str(&file.content).unwrap_or_else(|error| panic!("{error}: {}", file.content))
}

#[test]
fn mcp_servers_are_told_in_each_program_s_own_way() {
    let rendered = |name: &str| {
        let adapter = HarnessAdapter::shipped(name).unwrap();
        assert!(adapter.takes_mcp_servers(), "{name}");
        render_with(&adapter, "Fix it", json!({}), &equipped())
    };
    let started = json!({"command": "run-it", "args": ["-x", "a \"b\""], "env": {"K.1": "v'"}});
    let with = |start: &Value, more: Value| {
        let mut all = start.as_object().unwrap().clone();
        all.extend(more.as_object().unwrap().clone());
        Value::Object(all)
    };
    let reached = |url: &str| json!({url: "https://host/mcp", "headers": {"X-Key": "secret"}});

    let claude = rendered("claude_code");
    let servers = json_file(&claude, "/polar-mcp.json")["mcpServers"].clone();
    assert_eq!(servers["local"], with(&started, json!({"type": "stdio"})));
    assert_eq!(servers["far"], with(&reached("url"), json!({"type": "http"})));
    assert!(claude.argv.windows(2).any(|w| w[0] == "--mcp-config" && w[1].ends_with("-mcp.json")));

    let gemini = json_file(&rendered("gemini_cli"), "settings.json")["mcpServers"].clone();
    assert_eq!(gemini["local"], with(&started, json!({"trust": true})));
    assert_eq!(gemini["far"], with(&reached("httpUrl"), json!({"trust": true})));

    let qwen = json_file(&rendered("qwen_code"), "settings.json")["mcpServers"].clone();
    assert_eq!(qwen, json!({"local": started, "far": reached("httpUrl")}));

    let opencode = json_file(&rendered("opencode"), "opencode.json")["mcp"].clone();
    assert_eq!(opencode["local"]["command"], json!(["run-it", "-x", "a \"b\""]));
    assert_eq!(opencode["local"]["environment"], json!({"K.1": "v'"}));
    assert_eq!(opencode["far"]["type"], "remote");

    let pi = rendered("pi");
    let servers = json_file(&pi, "mcp.json")["mcpServers"].clone();
    assert_eq!(servers["local"], with(&started, json!({"exposure": "direct"})));
    assert!(pi.argv.windows(2).any(|w| w == ["--extension", "builtin:mcp"]));

    let openhands = json_file(&rendered("openhands"), "openhands.json")["mcp_servers"].clone();
    assert_eq!(openhands, json!({"local": started, "far": reached("url")}));

    let codex = rendered("codex");
    let config = &codex.files[0].content;
    for lines in [
        "[mcp_servers.\"local\"]\ncommand = \"run-it\"\nargs = [\"-x\",\"a \\\"b\\\"\"]\n",
        "[mcp_servers.\"local\".env]\n\"K.1\" = \"v\\u0027\"\n",
        "[mcp_servers.\"far\"]\nurl = \"https://host/mcp\"\n",
        "[mcp_servers.\"far\".http_headers]\n\"X-Key\" = \"secret\"\n",
    ] {
        assert!(config.contains(lines), "{lines} is not in {config}");
    }
}

#[test]
fn skills_go_where_each_program_looks_for_them() {
    for (name, folder) in [
        ("claude_code", "/home/agent/.claude/skills"),
        ("codex", "/home/agent/.codex/skills"),
        ("gemini_cli", "/home/agent/.gemini/skills"),
        ("opencode", "/home/agent/.config/opencode/skills"),
        ("openhands", "/home/agent/.openhands/skills"),
        ("pi", "/home/agent/.pi/agent/skills"),
        ("qwen_code", "/home/agent/.qwen/skills"),
    ] {
        let adapter = HarnessAdapter::shipped(name).unwrap();
        let harness = render_with(&adapter, "Fix it", json!({}), &equipped());
        let told = harness.files.iter().find(|f| f.path == format!("{folder}/told/SKILL.md"));
        assert!(told.unwrap().content.ends_with("Do {{ it }}."), "a skill is no template");
        assert_eq!(harness.skill_folders, [("/opt/kept".into(), format!("{folder}/kept"))]);
    }
    let claude = HarnessAdapter::shipped("claude_code").unwrap();
    let harness = render_with(&claude, "Fix it", json!({}), &equipped());
    assert!(harness.argv.windows(2).any(|w| w == ["--tools", "Bash,Edit,Write,Read,Skill"]));
}

#[test]
fn what_a_program_cannot_take_is_refused_with_the_field_s_name() {
    for name in ["mini_swe_agent", "shell"] {
        let spec = HarnessSpec { name: name.into(), ..equipped() };
        let problems = HarnessAdapter::problems_of(&spec);
        let fields: Vec<_> = problems.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(fields, ["harness.mcp_servers", "harness.skills"], "{name}");
        for problem in problems {
            assert!(problem.to_string().contains("claude_code, codex"), "{problem}");
        }
    }
    let spec = HarnessSpec { name: "pi".into(), ..equipped() };
    assert!(HarnessAdapter::problems_of(&spec).is_empty());
}

#[test]
fn reasoning_effort_is_asked_for_in_the_same_words_everywhere() {
    for adapter in HarnessAdapter::list().unwrap() {
        let Some(setting) = adapter.settings.get("reasoning_effort") else {
            assert_eq!(adapter.name, "shell");
            continue;
        };
        assert_eq!(setting.default, "", "{}", adapter.name);
        let choices = setting.choices.as_ref().unwrap();
        for choice in ["", "low", "medium", "high"] {
            assert!(choices.contains(&json!(choice)), "{} has no {choice:?}", adapter.name);
        }
        let all = |settings: Value| {
            let harness = render(&adapter, "Fix it", settings);
            let files = harness.files.iter().map(|file| file.content.clone());
            harness.argv.into_iter().chain(harness.env.into_values()).chain(files).collect()
        };
        let (without, with): (Vec<String>, Vec<String>) =
            (all(json!({})), all(json!({"reasoning_effort": "low"})));
        let says = |all: &[String]| all.join("\n").to_lowercase().matches("low\"").count();
        let in_arguments = with.iter().any(|text| text == "low");
        assert!(says(&with) > says(&without) || in_arguments, "{} says nothing", adapter.name);
    }
    let claude = HarnessAdapter::shipped("claude_code").unwrap();
    let budget = |settings| render(&claude, "Fix it", settings).env["MAX_THINKING_TOKENS"].clone();
    assert_eq!(budget(json!({})), "0");
    assert_eq!(budget(json!({"reasoning_effort": "low"})), "4000");
    assert_eq!(budget(json!({"reasoning_effort": "max"})), "63999");
    assert_eq!(budget(json!({"reasoning_effort": "low", "max_thinking_tokens": 7})), "7");
}

#[test]
fn clients_of_chat_are_told_the_gateway_the_window_and_the_longest_reply() {
    let gateway = "http://127.0.0.1:9000/v1";
    let rendered = |name: &str| {
        let harness = render(&HarnessAdapter::shipped(name).unwrap(), "Fix it", json!({}));
        let written: String = harness.files.iter().map(|file| file.content.as_str()).collect();
        assert!(!written.contains("polar-secret"), "{name}: the secret is in no file");
        assert!(!harness.argv.iter().any(|arg| arg.contains("polar-secret")), "{name}");
        assert!(harness.env.values().any(|value| value == "polar-secret"), "{name}");
        harness
    };

    let qwen = rendered("qwen_code");
    assert_eq!(qwen.env["OPENAI_BASE_URL"], gateway);
    let settings = json_file(&qwen, "settings.json");
    let generation = &settings["model"]["generationConfig"];
    assert_eq!(generation["contextWindowSize"], 32_768);
    assert_eq!(generation["samplingParams"], json!({"max_tokens": 8_192}));
    assert_eq!(settings["privacy"]["usageStatisticsEnabled"], false);
    assert_eq!(settings["permissions"]["deny"], json!([]));

    let opencode = rendered("opencode");
    let config = json_file(&opencode, "opencode.json");
    assert_eq!(config["provider"]["polar"]["options"]["baseURL"], gateway);
    let limit = &config["provider"]["polar"]["models"]["polar"]["limit"];
    assert_eq!(limit, &json!({"context": 32_768, "output": 8_192}));
    assert!(opencode.argv.windows(2).any(|w| w == ["--model", "polar/polar"]));

    let mini = rendered("mini_swe_agent");
    assert_eq!(mini.env["OPENAI_API_BASE"], gateway);
    let config = json_file(&mini, "mini.yaml");
    assert_eq!(config["run"]["task"], "Fix it");
    assert_eq!(config["model"]["model_kwargs"]["max_tokens"], 8_192);

    let openhands = rendered("openhands");
    let config = json_file(&openhands, "openhands.json");
    assert_eq!(config["llm"]["base_url"], gateway);
    assert_eq!(config["llm"]["reasoning_effort"], Value::Null);
    assert_eq!(config["llm"]["max_input_tokens"], 32_768);
    assert_eq!(config["compact_at_tokens"], 22_937);
}
