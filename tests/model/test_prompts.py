"""How a chat becomes a prompt."""

from lab.model.prompts import fold_system


def test_a_system_message_is_folded_into_the_first_user_message_only():
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]
    assert fold_system(chat) == [{"role": "user", "content": "S\n\nU"}, {"role": "assistant", "content": "A"}]
    assert fold_system(chat[1:]) == chat[1:]
