//! What templates may do, in small; whole published templates are held to `transformers` by the
//! `templates` suite.

use super::*;
use serde_json::json;

fn compiled(source: &str) -> ChatTemplate {
    let templates = vec![("default".to_owned(), source.to_owned())];
    ChatTemplate::new(TemplateFiles { templates, specials: Map::new() }).unwrap()
}

fn attempt(source: &str, options: &Value) -> Result<String, TemplateError> {
    compiled(source).render(&RenderInput {
        messages: &[json!({})],
        tools: None,
        add_generation_prompt: true,
        options: options.as_object().unwrap(),
        now: jiff::civil::date(2026, 3, 4).at(5, 6, 7, 0),
    })
}

#[track_caller]
fn renders(source: &str, options: &Value, expected: &str) {
    assert_eq!(attempt(source, options).as_deref(), Ok(expected), "{source}");
}

#[test]
fn values_are_printed_as_python_prints_them() {
    let options =
        json!({"v": {"a": [1, null, true, "it's"], "b": 1e-7}, "f": 1e22, "n": null, "t": true});
    renders("{{ v }}", &options, r#"{'a': [1, None, True, "it's"], 'b': 1e-07}"#);
    renders("{{ f }} {{ n }} {{ t }} {{ missing }}|", &options, "1e+22 None True |");
    renders("{{ f | string }} {{ [1e-9, n] | join(',') }}", &options, "1e+22 1e-09,None");
    renders("{{ 'x' ~ n ~ t ~ v.b ~ f }}", &options, "xNoneTrue1e-071e+22");
    renders(
        "{{ f is number }} {{ f is float }} {{ v.b | tojson }} {{ f | int }}",
        &options,
        "True True 1e-07 10000000000000000000000",
    );
    let hard = json!({"v": ["\u{0}\u{1}\u{a0}\u{2028}👩\u{200d}e\u{301}\u{e0001}\"'"]});
    renders("{{ v }}", &hard, r#"['\x00\x01\xa0\u2028👩\u200dé\U000e0001"\'']"#);
}

#[test]
fn a_dicts_methods_and_keys_are_found_in_jinjas_order() {
    let options = json!({"d": {"items": [1], "b": 2}, "e": {"type": "array"}});
    renders("{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", &options, "items=[1];b=2;");
    renders("{{ d['items'] }} {{ d.items is callable }}", &options, "[1] True");
    renders("{{ 'items' in d }} {{ 'items' in e }}", &options, "True False");
    renders("{{ 'yes' if e['items'] else 'no' }}", &options, "yes");
    renders("{{ e['items']['type'] is defined }}", &options, "False");
    renders("{{ d.get('c', 'none') }} {{ d.get('c') }} {{ d | length }}", &options, "none None 2");
    renders(
        "{{ d[0] is defined }} {{ d is mapping }} {{ [] is mapping }}",
        &options,
        "False True False",
    );
    renders("{% for k in d %}{{ k }} {% endfor %}{{ d == d }}", &options, "items b True");
    renders("{{ d | dictsort }}", &options, "[['b', 2], ['items', [1]]]");
}

#[test]
fn tojson_takes_the_arguments_of_transformers() {
    let options = json!({"v": {"b": "é", "a": [1.0, {"c": null}]}});
    renders("{{ v | tojson }}", &options, r#"{"b": "é", "a": [1.0, {"c": null}]}"#);
    renders(
        "{{ v | tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}",
        &options,
        r#"{"a":[1.0,{"c":null}],"b":"\u00e9"}"#,
    );
    renders(
        "{{ v | tojson(indent=2) }}",
        &options,
        "{\n  \"b\": \"é\",\n  \"a\": [\n    1.0,\n    {\n      \"c\": null\n    }\n  ]\n}",
    );
    assert!(attempt("{{ missing | tojson }}", &options).is_err());
}

#[test]
fn strings_have_pythons_methods() {
    let options = json!({"s": "\u{1c} é</think> a  b \n", "w": "  a b  c "});
    renders("{{ s.strip() }}|{{ s.find('</think>') }}", &options, "é</think> a  b|3");
    renders("{{ s.split('</think>')[-1].lstrip() }}|", &options, "a  b \n|");
    renders("{{ w.split() }} {{ w.split(None, 1) }}", &options, "['a', 'b', 'c'] ['a', 'b  c ']");
    renders("{{ w.rsplit(None, 1) }}", &options, "['  a b', 'c']");
    renders("{{ 'a,b,c'.split(',', maxsplit=1) }}", &options, "['a', 'b,c']");
    renders("{{ 'a,b,c'.rsplit(',', 1) }}", &options, "['a,b', 'c']");
    renders("{{ 'ab'.startswith(('x', 'a')) }}", &options, "True");
    renders(
        "{{ \"they're x-ray\".title() }} {{ 'x-ray a' | title }}",
        &options,
        "They'Re X-Ray X-Ray A",
    );
    renders("{{ 'a\r\nb\n'.splitlines() }}", &options, "['a', 'b']");
    renders("{{ 'abc'[::-1] }} {{ 'abc'[0] }} {{ 'abc'[-2:] }}", &options, "cba a bc");
    renders(
        "{{ 'abc'[2:0:-1] }} {{ 'abc'[0:9:2] }} {{ ''[::-1] }}|{{ 'é漢x'[1:-1] }}",
        &options,
        "cb ac |漢",
    );
    renders("{{ '{}-{x}'.format(1, x=2) }}", &options, "1-2");
}

#[test]
fn blocks_and_loops_are_jinjas() {
    let options = json!({"l": [1, 2, 3]});
    renders(
        "  {% for x in l %}\n    {% if x == 2 %}\n      {% continue %}\n    {% endif %}\n{{ x }}{{ loop.previtem }}\n  {% endfor %}\n",
        &options,
        "1\n32\n",
    );
    renders("{%- generation -%} a {%- endgeneration %} b", &options, "a b");
    renders("{% generation %}{% set x = 1 %}{% endgeneration %}{{ x }}", &options, "");
    renders(
        "{% set ns = namespace(a=1) %}{% for x in l %}{% set ns.a = x %}{% endfor %}{{ ns.a }}",
        &options,
        "3",
    );
    renders(
        "{{ l[1:][-1] }} {{ l[::-1] }} {{ [][::-1] }} {{ l[5:] | length }}",
        &options,
        "3 [3, 2, 1] [] 0",
    );
    assert!(attempt("{{ none[1:] }}", &options).is_err());
    assert!(attempt("{% for x in none %}{% endfor %}", &options).is_err());
    renders(
        "{% for x in missing %}{% endfor %}{% for x in 1, 2 %}{{ x }}{% endfor %}",
        &options,
        "12",
    );
    renders("{{ strftime_now('%d %b %Y') }}", &options, "04 Mar 2026");
}

#[test]
fn a_template_is_chosen_and_its_errors_are_told_apart() {
    let templates = [
        ("default", "plain {{ bos }}"),
        ("tool_use", "tools\n{{ raise_exception('no ' ~ tools[0].n) }}"),
    ];
    let files = TemplateFiles {
        templates: templates.map(|(name, source)| (name.to_owned(), source.to_owned())).into(),
        specials: json!({"bos": "<s>"}).as_object().unwrap().clone(),
    };
    let template = ChatTemplate::new(files.clone()).unwrap();
    let (options, tools) = (Map::new(), [json!({"n": 1})]);
    let messages = [json!({})];
    let mut input = RenderInput {
        messages: &messages,
        tools: None,
        add_generation_prompt: false,
        options: &options,
        now: CivilDateTime::default(),
    };
    assert_eq!(template.render(&input).unwrap(), "plain <s>");
    input.tools = Some(&tools);
    let refused = TemplateError::Refused { message: "no 1".to_owned() };
    assert_eq!(template.render(&input), Err(refused));

    let mut other = files.clone();
    other.templates.reverse();
    assert_eq!(ChatTemplate::new(other.clone()).unwrap().hash(), template.hash());
    other.specials.insert("bos".to_owned(), json!("<t>"));
    assert_ne!(ChatTemplate::new(other).unwrap().hash(), template.hash());

    let broken = TemplateFiles {
        templates: vec![("default".to_owned(), "a\n{% if %}".to_owned())],
        specials: Map::new(),
    };
    let error = ChatTemplate::new(broken).unwrap_err();
    assert!(
        matches!(&error, TemplateError::Compile { template, line: 2, .. } if template == "default"),
        "{error}"
    );
    let error = attempt("a\n{{ missing.name }}", &json!({})).unwrap_err();
    assert!(matches!(error, TemplateError::Render { line: 2, .. }), "{error}");
    assert!(matches!(
        ChatTemplate::new(TemplateFiles::default()),
        Err(TemplateError::Missing { .. })
    ));
    assert!(attempt("{{ [1].append(2) }}", &json!({})).is_err());
}
