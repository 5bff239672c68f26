//! Lists the mutants of source files: where, what for what. `scripts/mutate` makes them.
//!
//! ```text
//! picnic-mutants FILE...     one JSON object a line: file, function, line, bytes, before, after
//! ```
//!
//! A mutant is an expression with another operator, constant or method, a condition turned
//! round, a statement left out, or a function that returns at once. Left alone are tests, `const`
//! and `unsafe` code, patterns, types and macro arguments.
//!
//! Source: DeMillo, Lipton, Sayward, "Hints on test data selection", 1978; the switch at run time:
//! Untch, Offutt, Harrold, "Mutation analysis using mutant schemata", 1993.

use proc_macro2::Span;
use quote::ToTokens;
use serde_json::json;
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, Lit, Pat, ReturnType, Stmt, Type, UnOp};

/// Methods, and their replacements.
const METHODS: &[(&str, &str)] = &[
    ("min", "max"),
    ("max", "min"),
    ("saturating_add", "wrapping_add"),
    ("saturating_sub", "wrapping_sub"),
    ("saturating_mul", "wrapping_mul"),
    ("wrapping_add", "wrapping_sub"),
    ("wrapping_sub", "wrapping_add"),
    ("is_some", "is_none"),
    ("is_none", "is_some"),
    ("is_ok", "is_err"),
    ("is_err", "is_ok"),
    ("is_some_and", "is_none_or"),
    ("is_none_or", "is_some_and"),
    ("any", "all"),
    ("all", "any"),
    ("first", "last"),
    ("last", "first"),
    ("front", "back"),
    ("pop_front", "pop_back"),
    ("push_back", "push_front"),
    ("starts_with", "ends_with"),
    ("trailing_zeros", "leading_zeros"),
    ("div_ceil", "saturating_div"),
];

struct Lister<'a> {
    file: &'a str,
    functions: Vec<String>,
}

/// A node's text on one line, without comments.
fn text(node: &impl ToTokens) -> String {
    node.to_token_stream().to_string()
}

fn binary(op: &BinOp) -> &'static [&'static str] {
    match op {
        BinOp::Lt(_) => &["<=", ">="],
        BinOp::Le(_) => &["<", ">"],
        BinOp::Gt(_) => &[">=", "<="],
        BinOp::Ge(_) => &[">", "<"],
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        BinOp::Add(_) => &["-"],
        BinOp::Sub(_) => &["+"],
        BinOp::Mul(_) => &["+"],
        BinOp::Div(_) | BinOp::Rem(_) => &["*"],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::BitAnd(_) => &["|"],
        BinOp::BitOr(_) | BinOp::BitXor(_) => &["&"],
        BinOp::Shl(_) => &[">>"],
        BinOp::Shr(_) => &["<<"],
        BinOp::AddAssign(_) => &["-="],
        BinOp::SubAssign(_) => &["+="],
        BinOp::MulAssign(_) | BinOp::DivAssign(_) => &["+="],
        BinOp::BitAndAssign(_) => &["|="],
        BinOp::BitOrAssign(_) | BinOp::BitXorAssign(_) => &["&="],
        _ => &[],
    }
}

/// Whether a `let` is in a condition: such a `let` is no value.
fn has_let(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(both) => has_let(&both.left) || has_let(&both.right),
        Expr::Paren(inner) => has_let(&inner.expr),
        _ => false,
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = text(&attribute.meta);
        text == "test" || (text.starts_with("cfg") && (text.contains("test") || text.contains("loom")))
    })
}

impl Lister<'_> {
    fn tell(&self, kind: &str, span: Span, bytes: Range<usize>, before: &str, after: &str) {
        let object = json!({
            "file": self.file,
            "function": self.functions.last().map_or("", String::as_str),
            "line": span.start().line,
            "start": bytes.start,
            "end": bytes.end,
            "kind": kind,
            "before": before,
            "after": after,
        });
        println!("{object}");
    }

    fn expression(&self, node: &impl ToTokens, after: &str) {
        let span = node.span();
        self.tell("expression", span, span.byte_range(), &text(node), after);
    }

    fn condition(&self, condition: &Expr) {
        // Comparisons have mutants of their own.
        let compares = matches!(condition, Expr::Binary(_) | Expr::Unary(_));
        if !has_let(condition) && !compares {
            self.expression(condition, &format!("! ({})", text(condition)));
        }
    }

    fn function(&mut self, signature: &syn::Signature, body: &syn::Block, attributes: &[syn::Attribute]) {
        if signature.constness.is_some() || signature.unsafety.is_some() || is_test(attributes) {
            return;
        }
        self.functions.push(signature.ident.to_string());
        let returns: &[&str] = match &signature.output {
            ReturnType::Default if body.stmts.len() > 1 => &[""],
            ReturnType::Type(_, kind) => match &**kind {
                Type::Path(path) => match path.path.segments.last() {
                    Some(last) => match last.ident.to_string().as_str() {
                        "bool" => &["true", "false"],
                        "Option" => &["None"],
                        "usize" | "u64" | "u32" | "u16" | "u8" => &["0", "1"],
                        "String" => &["String::new()"],
                        "Vec" => &["Vec::new()"],
                        _ => &[],
                    },
                    None => &[],
                },
                _ => &[],
            },
            ReturnType::Default => &[],
        };
        let inside = body.brace_token.span.open().byte_range().end;
        if signature.asyncness.is_none() && !body.stmts.is_empty() {
            for value in returns {
                let name = signature.ident.to_string();
                let after = format!("return {value}");
                self.tell("entry", signature.ident.span(), inside..inside, &name, after.trim_end());
            }
        }
        visit::visit_block(self, body);
        self.functions.pop();
    }
}

impl<'ast> Visit<'ast> for Lister<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block, &item.attrs);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block, &item.attrs);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.function(&item.sig, body, &item.attrs);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        // Debug output is no promise.
        let shows = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        if !is_test(&item.attrs) && shows.is_none_or(|name| name.ident != "Debug") {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_expr_unsafe(&mut self, _: &'ast syn::ExprUnsafe) {}
    fn visit_pat(&mut self, _: &'ast Pat) {}
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
    fn visit_macro(&mut self, _: &'ast syn::Macro) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_angle_bracketed_generic_arguments(
        &mut self,
        _: &'ast syn::AngleBracketedGenericArguments,
    ) {
    }

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_expr_binary(&mut self, node: &'ast syn::ExprBinary) {
        if !has_let(&node.left) && !has_let(&node.right) {
            for op in binary(&node.op) {
                let after = format!("{} {op} {}", text(&node.left), text(&node.right));
                self.expression(node, &after);
            }
        }
        visit::visit_expr_binary(self, node);
    }

    fn visit_expr_unary(&mut self, node: &'ast syn::ExprUnary) {
        if matches!(node.op, UnOp::Not(_) | UnOp::Neg(_)) {
            self.expression(node, &text(&node.expr));
        }
        visit::visit_expr_unary(self, node);
    }

    fn visit_expr_if(&mut self, node: &'ast syn::ExprIf) {
        self.condition(&node.cond);
        visit::visit_expr_if(self, node);
    }

    fn visit_expr_while(&mut self, node: &'ast syn::ExprWhile) {
        self.condition(&node.cond);
        visit::visit_expr_while(self, node);
    }

    fn visit_expr_method_call(&mut self, node: &'ast syn::ExprMethodCall) {
        let name = node.method.to_string();
        for (_, other) in METHODS.iter().filter(|(from, _)| *from == name) {
            let mut changed = node.clone();
            changed.method = syn::Ident::new(other, node.method.span());
            self.expression(node, &text(&changed));
        }
        visit::visit_expr_method_call(self, node);
    }

    fn visit_expr_lit(&mut self, node: &'ast syn::ExprLit) {
        match &node.lit {
            Lit::Int(int) => {
                let Ok(value) = int.base10_parse::<u128>() else { return };
                let suffix = int.suffix();
                self.expression(node, &format!("{}{suffix}", value + 1));
                if value > 1 {
                    self.expression(node, &format!("{}{suffix}", value - 1));
                }
            }
            Lit::Bool(value) => {
                self.expression(node, if value.value { "false" } else { "true" });
            }
            _ => {}
        }
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        if let Stmt::Expr(expression, Some(_)) = statement {
            let acts = matches!(expression, Expr::MethodCall(_) | Expr::Call(_) | Expr::Assign(_))
                || matches!(expression, Expr::Binary(_));
            if acts {
                let span = statement.span();
                self.tell("statement", span, span.byte_range(), &text(statement), "");
            }
        }
        visit::visit_stmt(self, statement);
    }
}

fn main() {
    for file in std::env::args().skip(1) {
        let source = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        let parsed = syn::parse_file(&source).unwrap_or_else(|error| panic!("{file}: {error}"));
        Lister { file: &file, functions: Vec::new() }.visit_file(&parsed);
    }
}
