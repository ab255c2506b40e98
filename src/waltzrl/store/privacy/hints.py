"""Words that announce personal data, in the languages of the regions: en de fr es it pt nl ja hi.

Normalised text keeps only the class of a letter that is not ASCII (`normalised`). Words
of scripts without case would all look alike there, so they are replaced by a mark of what they
announce, as long as the word.
"""

import re
import unicodedata
from collections.abc import Mapping

SMALL = "\xe0"
"""The letter that stands in normalised text for any small letter that is not ASCII."""

_PASSWORD = (
    "password|passwort|passwd|passphrase|passcode|pwd|kennwort|kennwörter|mot de passe|mdp"
    "|code secret|contraseña|clave de acceso|senha|palavra-passe|parola d'ordine|parola chiave"
    "|wachtwoord|パスワード|暗証番号|पासवर्ड|कूटशब्द"
)
_NAME = (
    "name|full name|first name|last name|family name|given name|middle name|surname|contact"
    "|contact person|attn|cardholder|account holder|passenger|customer|patient|applicant"
    "|employee|vorname|nachname|familienname"
    "|vollständiger name|kunde|kundin|patientin|ansprechpartner|nom|prénom|nom complet"
    "|nom de famille|nombre|nombre completo|apellido|apellidos|cliente|paciente|nome|nome completo"
    "|cognome|sobrenome|naam|voornaam|achternaam|volledige naam|klant"
    "|氏名|お名前|名前|担当者|नाम|पूरा नाम"
)
_NAME_SENTENCES = (
    "my name is|my full name is|my name's|his name is|his name was|her name is|her name was"
    "|their name is|customer's name is|legal name is|real name is|maiden name is"
    "|i am called|i'm called|they call me|ich heiße|mein name ist"
    "|je m'appelle|mon nom est|me llamo|mi nombre es|mi chiamo|il mio nome è|me chamo|meu nome é"
    "|mijn naam is|ik heet|私の名前は|मेरा नाम"
)
_PHONE = (
    "phone|telephone|tel|telefon|mobile|mobil|handy|cell|cellphone|fax|whatsapp|sms|call|dial"
    "|rufnummer|handynummer|telefonnummer|téléphone|portable|appelez|teléfono|móvil|celular"
    "|llame|llámame|telefono|cellulare|chiamate|telefone|telemóvel|ligue|telefoon"
    "|telefoonnummer|mobiel|bel|電話|電話番号|携帯|फ़ोन|फोन|मोबाइल"
)
_BIRTH = (
    "date of birth|birth date|birthdate|birthday|dob|d.o.b|born|born on|was born on"
    "|geburtsdatum|geboren am|geb|geburtstag|date de naissance|né le|née le|fecha de nacimiento"
    "|nacido el|nacida el|nací el|data di nascita|nato il|nata il|data de nascimento|nascido em"
    "|nascida em|nasci em|geboortedatum|geboren op|生年月日|誕生日|जन्म तिथि|जन्मतिथि|जन्म दिनांक"
)
_ADDRESS = (
    "address|home address|postal address|billing address|shipping address|adresse|anschrift"
    "|dirección|domicilio|indirizzo|endereço|morada|adres|woonadres|住所|पता"
)
_ADDRESS_SENTENCES = (
    "i live at|lives at|living at|resident at|residing at|address is|wohnhaft in|ich wohne in der"
    "|ich wohne in|adresse ist|domicilié au|j'habite au|vivo en|residente in|abito in|moro na"
    "|resido na|ik woon op"
)
_CARD = (
    "card|cards|credit card|debit card|bank card|creditcard|karte|kreditkarte|kartennummer|carte"
    "|carte bancaire|tarjeta|carta|carta di credito|cartão|kaart|visa|mastercard|maestro|amex"
    "|american express|diners|discover|unionpay|rupay|jcb|pan|cvv|cvc|カード|クレジットカード"
    "|银行卡|信用卡|储蓄卡|借记卡|卡号|银联|銀行卡|卡號|銀聯|कार्ड|카드"
)
_WORDS: Mapping[str, tuple[str, str]] = {
    "password": ("\x81", _PASSWORD),
    "name": ("\x82", _NAME),
    "name sentence": ("\x83", _NAME_SENTENCES),
    "phone": ("\x84", _PHONE),
    "birth": ("\x85", _BIRTH),
    "address": ("\x86", _ADDRESS),
    "address sentence": ("\x89", _ADDRESS_SENTENCES),
    "my number": ("\x87", "my number|mynumber|マイナンバー|個人番号"),
    "card": ("\x8a", _CARD),
    "aadhaar": ("\x88", "aadhaar|aadhar|uidai|आधार"),
}
"""The marks and the words, by what they announce."""


def _is_uncased(word: str) -> bool:
    return any(unicodedata.category(character) == "Lo" for character in word)


UNCASED: Mapping[str, str] = {
    # As long as the word, because positions are mapped back to the original by counting characters.
    word: mark * len(word)
    for mark, words in _WORDS.values()
    for word in words.split("|")
    if _is_uncased(word)
}
"""Word of a script without case -> what replaces it."""
# The longest first: an alternation takes the first word that matches.
_ANY_UNCASED = re.compile("|".join(sorted(UNCASED, key=len, reverse=True)))
MARKS = "".join(mark for mark, _words in _WORDS.values())


def mark_words(text: str) -> str:
    """Return the text with words of scripts without case replaced by their marks."""
    return _ANY_UNCASED.sub(lambda match: UNCASED[match[0]], text)


def build_hints(what: str) -> str:
    """Return a regular expression over normalised text, for one of the words in any language."""
    mark, words = _WORDS[what]
    cased = [_spell_word(word) for word in words.split("|") if not _is_uncased(word)]
    cased.sort(key=len, reverse=True)
    # Every such word has two characters or more; a single mark may stand in the text itself.
    return rf"(?:(?i:\b(?:{'|'.join(cased)}))|{mark}{{2,}})"


_ASCII = {" ": "[ _-]?", "'": "['\xb7]"}
"""Characters of words that have other spellings: in keys, and as a typographic apostrophe."""


def _spell_word(word: str) -> str:
    """Return a regular expression of a word, with its accents and without them."""
    letters = []
    for letter in word:
        plain = unicodedata.normalize("NFKD", letter)[0]
        accented = f"[{SMALL}{plain}]" if plain.isascii() else SMALL
        letters.append(_ASCII.get(letter, re.escape(letter)) if letter.isascii() else accented)
    return "".join(letters) + (r"\b" if word[-1].isascii() else "")
