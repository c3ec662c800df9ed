//! Equal text, equal refusals.

use crate::{Case, Expected, FAMILIES, File, compile, described};
use polar_tokens::template::{ChatTemplate, CivilDateTime, RenderInput, TemplateError};

/// Where Polar renders otherwise, and why.
const DIFFERENCES: [(&str, &str); 2] = [
    (
        "llama-cpp-deepseek-r1",
        "with tools it dumps a generator, which Python refuses; here it is a list and is dumped",
    ),
    (
        "meetkai-functionary-medium-v3.1",
        "with tools it adds text to what it marked `safe`, which escapes that text for HTML in Python",
    ),
];

#[test]
fn text_and_refusals_are_those_of_transformers() {
    let file = File::read();
    for family in FAMILIES {
        let template = file.templates.iter().find(|template| template.name == family);
        let expected = &template.unwrap_or_else(|| panic!("no template of {family}")).expected;
        let texts = expected.iter().filter(|expected| matches!(expected, Expected::Text { .. }));
        assert!(
            texts.count() * 5 >= expected.len() * 2,
            "{family} refuses most of the conversations"
        );
        assert!(DIFFERENCES.iter().all(|(template, _)| *template != family), "{family}");
    }
    let mut unlike = Vec::new();
    let mut unseen = DIFFERENCES.to_vec();
    for template in &file.templates {
        let compiled = compile(template, &file.specials);
        for (case, expected) in file.cases.iter().zip(&template.expected) {
            let found = match &compiled {
                Ok(compiled) => render(compiled, case, file.now),
                Err(error) => Err(error.clone()),
            };
            let Some(difference) = difference(expected, &found) else { continue };
            if case.tools.is_some() && DIFFERENCES.iter().any(|(name, _)| *name == template.name) {
                unseen.retain(|(name, _)| *name != template.name);
            } else {
                unlike.push(format!("{} / {}: {difference}", template.name, described(case)));
            }
        }
    }
    let (count, templates) = (file.cases.len(), file.templates.len());
    println!("{templates} templates × {count} requests, transformers {}", file.transformers);
    assert!(unlike.is_empty(), "{} unlike:\n{}", unlike.len(), unlike.join("\n"));
    assert!(unseen.is_empty(), "no such difference any more: {unseen:?}");
}

fn render(
    template: &ChatTemplate,
    case: &Case,
    now: CivilDateTime,
) -> Result<String, TemplateError> {
    template.render(&RenderInput {
        messages: &case.messages,
        tools: case.tools.as_deref(),
        add_generation_prompt: case.add_generation_prompt,
        options: &case.options,
        now,
    })
}

/// What is not as `transformers` has it.
fn difference(expected: &Expected, found: &Result<String, TemplateError>) -> Option<String> {
    match (expected, found) {
        (Expected::Text { text }, Ok(found)) if text == found => None,
        (Expected::Text { text }, Ok(found)) => Some(first_difference(text, found)),
        (Expected::Text { .. }, Err(error)) => Some(format!("refused here: {error}")),
        (Expected::Refused { refused, .. }, Ok(_)) => Some(format!("refused there: {refused}")),
        (
            Expected::Refused { refused, own_words: true },
            Err(TemplateError::Refused { message }),
        ) if refused == message => None,
        (
            Expected::Refused { own_words: false, .. },
            Err(
                TemplateError::Render { .. }
                | TemplateError::Compile { .. }
                | TemplateError::NoMessages,
            ),
        ) => None,
        (Expected::Refused { refused, .. }, Err(error)) => {
            Some(format!("refused there: {refused}; refused here: {error}"))
        }
    }
}

fn first_difference(expected: &str, found: &str) -> String {
    let shared = expected.chars().zip(found.chars()).take_while(|(a, b)| a == b).count();
    let around =
        |text: &str| -> String { text.chars().skip(shared.saturating_sub(20)).take(80).collect() };
    format!("expected {:?}, found {:?}", around(expected), around(found))
}
