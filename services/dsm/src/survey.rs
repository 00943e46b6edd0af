//! Answers to surveys of homes: this node has given up what it had of others before. They wait until that is done.

use policy::coherence::{Address, Message};

use crate::Shared;
use crate::core::Core;
use crate::waiting::Answer;
use crate::wire::Word;

impl Shared {
    /// Sends the answer when all steps noted so far of the home's pages are done: a mapping that was just given a page retains it
    /// for a while, and its programs must not read it when the home has given it to others. What this node itself cannot store or
    /// read as the home of other pages is no concern of that one. It asks again until it is answered: one answer is enough.
    pub(crate) fn answer_survey(&self, core: &mut Core, to: Address, message: Message) {
        if core.answers.iter().any(|answer| (answer.to, answer.message) == (to, message)) {
            return;
        }
        let is_its = |page| core.node.home(page).is_none_or(|home| home.at == to);
        let with_steps = core.pages.iter().filter(|(page, entry)| !entry.has_no_steps() && is_its(*page));
        let after = with_steps.map(|(page, _)| page).collect();
        core.answers.push(Answer { to, message, after });
    }

    pub(crate) fn send_answers(&self, core: &mut Core) {
        let mut answers = std::mem::take(&mut core.answers);
        answers.retain_mut(|answer| {
            answer.after.retain(|page| core.is_leaving(*page));
            if answer.after.is_empty() {
                self.send_word(answer.to, Word::page(answer.message, false), None);
            }
            !answer.after.is_empty()
        });
        core.answers = answers;
    }
}
