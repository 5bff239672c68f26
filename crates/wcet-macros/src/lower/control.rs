//! Jumps: conditions, matches, loops, `break`, `continue`, `return`, `?`.

use super::{Lowering, Target, tests};
use crate::attributes;
use crate::cost::Class;
use crate::count::{self, Rounds};
use crate::flow::Kind;
use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::{BinOp, Expr, ExprForLoop, ExprIf, ExprLoop, ExprMatch, ExprWhile, Label, UnOp};

impl Lowering<'_> {
    pub(super) fn jump(&mut self, expression: &Expr) {
        let span = expression.span();
        match expression {
            Expr::Block(inner) => match &inner.label {
                None => self.block(&inner.block),
                Some(label) => {
                    let done = self.flow.block();
                    let label = Some(label.name.ident.clone());
                    let target = Target { label, number: None, again: None, done, in_head: false };
                    self.target(target, |lowering| lowering.block(&inner.block));
                    self.flow.edge(self.current, done, Kind::Next);
                    self.at(done);
                }
            },
            Expr::If(inner) => self.if_else(inner),
            Expr::Match(inner) => self.matched(inner),
            Expr::Let(_) => self.value_by_branches(expression),
            Expr::Loop(inner) => self.endless(inner),
            Expr::While(inner) => self.while_loop(inner),
            Expr::ForLoop(inner) => self.for_loop(inner),
            Expr::Try(inner) => {
                self.expression(&inner.expr);
                self.question_mark(span);
            }
            Expr::Return(inner) => {
                if let Some(value) = &inner.expr {
                    self.expression(value);
                }
                self.charge(Class::Branch, 1, span);
                self.leave(self.exit(), Kind::Next);
            }
            Expr::Break(inner) => {
                if let Some(value) = &inner.expr {
                    self.expression(value);
                }
                self.charge(Class::Branch, 1, span);
                let found = self.find(inner.label.as_ref());
                let done = found.map(|place| self.targets[place].done);
                self.not_from_head(found, span);
                // The compiler reports unknown labels.
                self.leave(done.unwrap_or_else(|| self.exit()), Kind::Next);
            }
            Expr::Continue(inner) => {
                self.charge(Class::Branch, 1, span);
                let found = self.find(inner.label.as_ref());
                self.not_from_head(found, span);
                match found.and_then(|place| self.targets[place].again) {
                    Some((to, kind)) => self.leave(to, kind),
                    None => self.leave(self.exit(), Kind::Next),
                }
            }
            _ => self.error(
                span,
                "the cost of this is unknown here: give its time, `#[wcet(ns = N)]` before \
                 it, or move it into a `#[bounded]` function",
            ),
        }
    }

    fn find(&self, label: Option<&syn::Lifetime>) -> Option<usize> {
        self.targets.iter().rposition(|target| match label {
            Some(label) => target.label.as_ref() == Some(&label.ident),
            None => target.number.is_some(),
        })
    }

    fn not_from_head(&mut self, target: Option<usize>, span: Span) {
        if target.is_some_and(|place| self.targets[place].in_head) {
            self.error(span, "a jump out of a loop's condition: move it into the body");
        }
    }

    // ------------------------------------------------------------ conditions

    /// Branches to `yes` or `no`.
    fn condition(&mut self, expression: &Expr, yes: usize, no: usize) {
        let span = expression.span();
        match expression {
            _ if attributes::of(expression).iter().any(|found| attributes::is(found, "wcet")) => {
                self.tested(expression, yes, no);
            }
            Expr::Paren(inner) => self.condition(&inner.expr, yes, no),
            Expr::Group(inner) => self.condition(&inner.expr, yes, no),
            Expr::Unary(inner) if matches!(inner.op, UnOp::Not(_)) => {
                self.condition(&inner.expr, no, yes);
            }
            Expr::Binary(inner) if matches!(inner.op, BinOp::And(_)) => {
                let second = self.flow.block();
                self.condition(&inner.left, second, no);
                self.at(second);
                self.condition(&inner.right, yes, no);
            }
            Expr::Binary(inner) if matches!(inner.op, BinOp::Or(_)) => {
                let second = self.flow.block();
                self.condition(&inner.left, yes, second);
                self.at(second);
                self.condition(&inner.right, yes, no);
            }
            Expr::Let(inner) => {
                self.expression(&inner.expr);
                self.charge(Class::Branch, tests(&inner.pat).max(1), span);
                self.charge(Class::Bitwise, 1, span);
                self.bind(&inner.pat);
                self.fork(yes, no);
            }
            _ => self.tested(expression, yes, no),
        }
    }

    fn tested(&mut self, expression: &Expr, yes: usize, no: usize) {
        self.expression(expression);
        self.charge(Class::Branch, 1, expression.span());
        self.fork(yes, no);
    }

    fn fork(&mut self, yes: usize, no: usize) {
        self.flow.edge(self.current, yes, Kind::Next);
        self.flow.edge(self.current, no, Kind::Next);
    }

    /// `a && b` and `a || b` as values.
    pub(super) fn value_of_condition(&mut self, inner: &syn::ExprBinary) {
        self.value_by_branches(&Expr::Binary(inner.clone()));
    }

    fn value_by_branches(&mut self, expression: &Expr) {
        let done = self.flow.block();
        self.condition(expression, done, done);
        self.at(done);
        self.charge(Class::Bitwise, 1, expression.span());
    }

    fn if_else(&mut self, inner: &ExprIf) {
        let scope = self.locals.len();
        let (yes, no, done) = (self.flow.block(), self.flow.block(), self.flow.block());
        self.condition(&inner.cond, yes, no);
        self.at(yes);
        self.block(&inner.then_branch);
        self.flow.edge(self.current, done, Kind::Next);
        self.locals.truncate(scope);
        self.at(no);
        if let Some((_, otherwise)) = &inner.else_branch {
            self.expression(otherwise);
        }
        self.flow.edge(self.current, done, Kind::Next);
        self.at(done);
    }

    fn matched(&mut self, inner: &ExprMatch) {
        let scope = self.locals.len();
        self.expression(&inner.expr);
        let done = self.flow.block();
        for (place, arm) in inner.arms.iter().enumerate() {
            let (body, next) = (self.flow.block(), self.flow.block());
            // One arm always matches, so the last needs no test.
            let last = place + 1 == inner.arms.len() && arm.guard.is_none();
            self.charge(Class::Branch, tests(&arm.pat).max(1), arm.pat.span());
            self.bind(&arm.pat);
            match &arm.guard {
                None if last => self.flow.edge(self.current, body, Kind::Next),
                None => self.fork(body, next),
                Some((_, guard)) => {
                    let asked = self.flow.block();
                    self.fork(asked, next);
                    self.at(asked);
                    self.condition(guard, body, next);
                }
            }
            self.at(body);
            self.expression(&arm.body);
            self.flow.edge(self.current, done, Kind::Next);
            self.locals.truncate(scope);
            self.at(next);
        }
        self.at(done);
    }

    // ------------------------------------------------------------ loops

    fn bound_of(&mut self, attrs: &[syn::Attribute], known: Option<Rounds>) -> Option<u64> {
        let given = attributes::bound(attrs).unwrap_or_else(|error| {
            self.item.errors.push(error);
            // The wrong bound is reported already; do not also report a missing bound.
            Some(1)
        });
        match (given, known) {
            (Some(given), Some(Rounds::Exactly(rounds))) if given < rounds => {
                let span =
                    attrs.iter().find(|found| attributes::is(found, "bound")).map(Spanned::span);
                self.error(
                    span.unwrap_or_else(Span::call_site),
                    format!("found {given} as the bound of a loop that runs {rounds} times"),
                );
                Some(rounds)
            }
            (Some(given), Some(known)) => Some(given.min(known.most())),
            (given, known) => given.or(known.map(Rounds::most)),
        }
    }

    fn label(label: Option<&Label>) -> Option<syn::Ident> {
        label.map(|label| label.name.ident.clone())
    }

    /// `loop`: left only by `break`.
    fn endless(&mut self, inner: &ExprLoop) {
        let bound = self.bound_of(&inner.attrs, None);
        let done = self.flow.block();
        let number = self.enter(inner.loop_token.span, bound, false);
        self.charge(Class::Branch, 1, inner.loop_token.span);
        let again = Some((self.flow.loops[number].header, Kind::Back(number)));
        let label = Self::label(inner.label.as_ref());
        let target = Target { label, number: Some(number), again, done, in_head: false };
        self.target(target, |lowering| lowering.block(&inner.body));
        self.round(number);
        self.exit_loop(done);
    }

    fn while_loop(&mut self, inner: &ExprWhile) {
        let scope = self.locals.len();
        let bound = self.bound_of(&inner.attrs, None);
        let done = self.flow.block();
        let number = self.enter(inner.while_token.span, bound, true);
        let again = Some((self.flow.loops[number].header, Kind::Back(number)));
        let label = Self::label(inner.label.as_ref());
        let head =
            Target { label: label.clone(), number: Some(number), again, done, in_head: true };
        let body = self.body_block(number);
        self.target(head, |lowering| lowering.condition(&inner.cond, body, done));
        self.flow.loops[number].in_head = false;
        self.at(body);
        let target = Target { label, number: Some(number), again, done, in_head: false };
        self.target(target, |lowering| lowering.block(&inner.body));
        self.round(number);
        self.exit_loop(done);
        self.locals.truncate(scope);
    }

    fn for_loop(&mut self, inner: &ExprForLoop) {
        let span = inner.for_token.span;
        let known = count::rounds(&inner.expr);
        let bound = self.bound_of(&inner.attrs, known);
        let scope = self.locals.len();
        self.expression(&inner.expr);
        let done = self.flow.block();
        let label = Self::label(inner.label.as_ref());
        if matches!(known, Some(Rounds::Exactly(1..))) {
            // The first round always runs: the test that may end the loop is at the end of each
            // round.
            self.next_item(span);
            let number = self.enter(span, bound, false);
            let test = self.flow.block();
            let target = Target {
                label,
                number: Some(number),
                again: Some((test, Kind::Next)),
                done,
                in_head: false,
            };
            self.bind(&inner.pat);
            self.target(target, |lowering| lowering.block(&inner.body));
            self.flow.edge(self.current, test, Kind::Next);
            self.at(test);
            self.next_item(span);
            self.flow.edge(test, done, Kind::Next);
            self.round(number);
        } else {
            let number = self.enter(span, bound, true);
            self.next_item(span);
            let body = self.body_block(number);
            self.flow.edge(self.current, done, Kind::Next);
            // A loop with no rounds has no path into its body.
            if known.is_none_or(|rounds| rounds.most() != 0) {
                self.flow.edge(self.current, body, Kind::Next);
            }
            self.flow.loops[number].in_head = false;
            self.at(body);
            let again = Some((self.flow.loops[number].header, Kind::Back(number)));
            let target = Target { label, number: Some(number), again, done, in_head: false };
            self.bind(&inner.pat);
            self.target(target, |lowering| lowering.block(&inner.body));
            self.round(number);
        }
        self.exit_loop(done);
        self.locals.truncate(scope);
    }

    /// The cost of the iterator's next item.
    fn next_item(&mut self, span: Span) {
        self.charge(Class::Call, 1, span);
        self.charge(Class::Branch, 1, span);
        self.charge(Class::Arithmetic, 1, span);
    }

    fn enter(&mut self, span: Span, bound: Option<u64>, in_head: bool) -> usize {
        let number = self.flow.open(span, bound, in_head);
        let header = self.flow.loops[number].header;
        self.flow.edge(self.current, header, Kind::Next);
        self.at(header);
        number
    }

    /// A block of the loop's body, made while its head is open.
    fn body_block(&mut self, number: usize) -> usize {
        self.flow.loops[number].in_head = false;
        let body = self.flow.block();
        self.flow.loops[number].in_head = true;
        body
    }

    /// The end of the body: back to the header.
    fn round(&mut self, number: usize) {
        let header = self.flow.loops[number].header;
        self.flow.edge(self.current, header, Kind::Back(number));
    }

    fn exit_loop(&mut self, done: usize) {
        self.flow.inside.pop();
        self.at(done);
    }
}
