//! Whether a template wants a message's content as a text or as a list of parts.
//!
//! Templates don't say. vLLM and SGLang look for a loop over the content in the template's program,
//! each in its own way, and give every message in the form found; the two forms differ in what
//! stands between several texts.

use super::rewrite;
use minijinja::machinery::ast::{Call, CallArg, Expr, Macro, Stmt};
use minijinja::machinery::{WhitespaceConfig, parse};

/// How a message's content is given to a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContentFormat {
    /// As one text.
    #[default]
    Text,
    /// As a list of objects, each with its type.
    Parts,
}

impl ContentFormat {
    /// What vLLM takes a template for: it follows the names that messages and their contents are
    /// given, also as arguments of macros.
    pub(super) fn of_vllm(source: &str) -> Self {
        found_in(source, |program| {
            let messages = program.message_names();
            let is_content = |expr| messages.iter().any(|name| is_content_of(expr, name));
            program.loops.iter().any(|each| match (variable(each.through), each.inside) {
                _ if is_content(each.through) => true,
                (Some(name), Some(inside)) => program.takes_content(inside, name, &is_content),
                (Some(name), None) => name == "content",
                (None, _) => false,
            })
        })
    }

    /// What SGLang takes a template for: it goes by words, and by three names of a message.
    pub(super) fn of_sglang(source: &str) -> Self {
        if ["image", "audio", "video", "vision"].iter().any(|word| source.contains(word)) {
            return Self::Parts;
        }
        found_in(source, |program| {
            let names = ["message", "msg", "m"];
            program.loops.iter().any(|each| names.iter().any(|n| is_content_of(each.through, n)))
        })
    }
}

fn found_in(source: &str, test: impl FnOnce(&Program<'_>) -> bool) -> ContentFormat {
    let source = rewrite::rewritten(source);
    let blanks =
        WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };
    let Ok(parsed) = parse(&source, "template", Default::default(), blanks) else {
        return ContentFormat::Text;
    };
    let mut program = Program::default();
    program.statement(&parsed, None);
    if test(&program) { ContentFormat::Parts } else { ContentFormat::Text }
}

/// What of a template's program matters here.
#[derive(Default)]
struct Program<'a> {
    loops: Vec<Loop<'a>>,
    /// Names and what they are set to.
    sets: Vec<(&'a Expr<'a>, &'a Expr<'a>)>,
    calls: Vec<&'a Call<'a>>,
}

struct Loop<'a> {
    target: &'a Expr<'a>,
    through: &'a Expr<'a>,
    inside: Option<&'a Macro<'a>>,
}

impl<'a> Program<'a> {
    /// The names that loops over the messages give to a message.
    fn message_names(&self) -> Vec<&'a str> {
        let mut lists = vec!["messages"];
        let mut at = 0;
        while let Some(list) = lists.get(at).copied() {
            let same =
                self.sets.iter().filter(|(_, value)| variable(stripped(value)) == Some(list));
            let names: Vec<&str> = same.filter_map(|(name, _)| variable(name)).collect();
            lists
                .extend(names.into_iter().filter(|name| !lists.contains(name)).collect::<Vec<_>>());
            at += 1;
        }
        let over = |each: &&Loop<'a>| {
            variable(stripped(each.through)).is_some_and(|name| lists.contains(&name))
        };
        self.loops.iter().filter(over).filter_map(|each| variable(each.target)).collect()
    }

    /// Whether a macro is called somewhere with a content as this argument.
    fn takes_content(
        &self,
        of: &Macro<'a>,
        argument: &str,
        is_content: &dyn Fn(&'a Expr<'a>) -> bool,
    ) -> bool {
        let calls = self.calls.iter().filter(|call| variable(&call.expr) == Some(of.name));
        let place = of.args.iter().position(|known| variable(known) == Some(argument));
        calls.into_iter().any(|call| {
            call.args.iter().enumerate().any(|(at, given)| match given {
                CallArg::Pos(given) => Some(at) == place && is_content(given),
                CallArg::Kwarg(name, given) => {
                    *name == argument && place.is_some() && is_content(given)
                }
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => false,
            })
        })
    }

    fn statements(&mut self, all: &'a [Stmt<'a>], inside: Option<&'a Macro<'a>>) {
        all.iter().for_each(|one| self.statement(one, inside));
    }

    fn statement(&mut self, statement: &'a Stmt<'a>, inside: Option<&'a Macro<'a>>) {
        match statement {
            Stmt::Template(s) => self.statements(&s.children, inside),
            Stmt::EmitExpr(s) => self.expression(&s.expr),
            Stmt::ForLoop(s) => {
                self.loops.push(Loop { target: &s.target, through: &s.iter, inside });
                self.expression(&s.iter);
                s.filter_expr.iter().for_each(|filter| self.expression(filter));
                self.statements(&s.body, inside);
                self.statements(&s.else_body, inside);
            }
            Stmt::IfCond(s) => {
                self.expression(&s.expr);
                self.statements(&s.true_body, inside);
                self.statements(&s.false_body, inside);
            }
            Stmt::WithBlock(s) => {
                s.assignments.iter().for_each(|(_, value)| self.expression(value));
                self.statements(&s.body, inside);
            }
            Stmt::Set(s) => {
                self.sets.push((&s.target, &s.expr));
                self.expression(&s.expr);
            }
            Stmt::SetBlock(s) => self.statements(&s.body, inside),
            Stmt::AutoEscape(s) => self.statements(&s.body, inside),
            Stmt::FilterBlock(s) => self.statements(&s.body, inside),
            Stmt::Block(s) => self.statements(&s.body, inside),
            Stmt::Macro(s) => self.statements(&s.body, Some(s)),
            Stmt::CallBlock(s) => {
                self.call(&s.call);
                self.statements(&s.macro_decl.body, inside);
            }
            Stmt::Do(s) => self.call(&s.call),
            _ => {}
        }
    }

    fn call(&mut self, call: &'a Call<'a>) {
        self.calls.push(call);
        self.expression(&call.expr);
        self.arguments(&call.args);
    }

    fn arguments(&mut self, arguments: &'a [CallArg<'a>]) {
        for argument in arguments {
            match argument {
                CallArg::Pos(value)
                | CallArg::Kwarg(_, value)
                | CallArg::PosSplat(value)
                | CallArg::KwargSplat(value) => self.expression(value),
            }
        }
    }

    fn expression(&mut self, expr: &'a Expr<'a>) {
        match expr {
            Expr::Var(_) | Expr::Const(_) => {}
            Expr::Slice(e) => self.expression(&e.expr),
            Expr::UnaryOp(e) => self.expression(&e.expr),
            Expr::BinOp(e) => [&e.left, &e.right].into_iter().for_each(|e| self.expression(e)),
            Expr::Compare(e) => {
                self.expression(&e.expr);
                e.ops.iter().for_each(|op| self.expression(&op.expr));
            }
            Expr::IfExpr(e) => {
                let all = [&e.test_expr, &e.true_expr].into_iter().chain(&e.false_expr);
                all.for_each(|e| self.expression(e));
            }
            Expr::Filter(e) => {
                e.expr.iter().for_each(|e| self.expression(e));
                self.arguments(&e.args);
            }
            Expr::Test(e) => {
                self.expression(&e.expr);
                self.arguments(&e.args);
            }
            Expr::GetAttr(e) => self.expression(&e.expr),
            Expr::GetItem(e) => {
                [&e.expr, &e.subscript_expr].into_iter().for_each(|e| self.expression(e));
            }
            Expr::Call(e) => self.call(e),
            Expr::List(e) => e.items.iter().for_each(|e| self.expression(e)),
            Expr::Map(e) => e.keys.iter().chain(&e.values).for_each(|e| self.expression(e)),
        }
    }
}

/// An expression without the filters, tests and slices around it.
fn stripped<'a>(expr: &'a Expr<'a>) -> &'a Expr<'a> {
    match expr {
        Expr::Filter(e) => e.expr.as_ref().map_or(expr, stripped),
        Expr::Test(e) => stripped(&e.expr),
        Expr::Slice(e) => stripped(&e.expr),
        Expr::Call(call) => match (&call.expr, call.args.first()) {
            (Expr::Var(name), Some(CallArg::Pos(value))) if name.id == rewrite::ITERABLE => {
                stripped(value)
            }
            (Expr::GetAttr(method), _) if method.name == rewrite::SLICE => stripped(&method.expr),
            _ => expr,
        },
        _ => expr,
    }
}

fn variable<'a>(expr: &'a Expr<'a>) -> Option<&'a str> {
    match expr {
        Expr::Var(name) => Some(name.id),
        Expr::Call(call) => match (&call.expr, call.args.first()) {
            (Expr::Var(name), Some(CallArg::Pos(value))) if name.id == rewrite::ITERABLE => {
                variable(value)
            }
            _ => None,
        },
        _ => None,
    }
}

/// Whether this is `name.content` or `name['content']`.
fn is_content_of<'a>(expr: &'a Expr<'a>, name: &str) -> bool {
    match stripped(expr) {
        Expr::GetAttr(e) => e.name == "content" && variable(&e.expr) == Some(name),
        Expr::GetItem(e) => {
            let key = e.subscript_expr.as_const();
            key.is_some_and(|key| key.as_str() == Some("content"))
                && variable(&e.expr) == Some(name)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ContentFormat::{Parts, Text};

    #[test]
    fn loops_over_contents_are_found_as_the_engines_find_them() {
        let over = |body: &str| format!("{{% for m in messages[1:] %}}{body}{{% endfor %}}");
        for (source, vllm, sglang) in [
            (over("{{ m.content }}"), Text, Text),
            (over("{% for p in m['content'] | list %}{% endfor %}"), Parts, Parts),
            (over("{% for c in m.tool_calls %}{% endfor %}"), Text, Text),
            (over("{% set content = m.content %}{% for p in content %}{% endfor %}"), Parts, Text),
            (
                over("{{ show(m.content) }}{% macro show(x) %}{% for p in x %}{% endfor %}{% endmacro %}"),
                Parts,
                Text,
            ),
            (
                over("{{ show(m.role) }}{% macro show(content) %}{% for p in content %}{% endfor %}{% endmacro %}"),
                Text,
                Text,
            ),
            (
                "{% set l = messages[1:] %}{% for x in l %}{% for p in x.content %}{% endfor %}{% endfor %}".to_owned(),
                Parts,
                Text,
            ),
            (over("{# an image #}{{ m.content }}"), Text, Parts),
            ("{% if %}".to_owned(), Text, Text),
        ] {
            assert_eq!(ContentFormat::of_vllm(&source), vllm, "{source}");
            assert_eq!(ContentFormat::of_sglang(&source), sglang, "{source}");
        }
    }
}
