"""The pages of bundles: what each is, who made it, when it served, and how it differs."""

from starlette.responses import Response

from waltzrl.gateway.description import describe_differences, format_setting, made_by
from waltzrl.operations.desk.request import PageRequest, page_error

MOST_LISTED = 200


def show_bundles(request: PageRequest) -> Response:
    """List the bundles, the newest first."""
    book = request.releases
    ids = book.bundles()
    listed = [found for id_ in ids[:MOST_LISTED] if (found := book.stored_bundle(id_))]
    return request.page(
        "bundles.html",
        bundles=listed,
        total=len(ids),
        serving=book.in_force(),
        made_by=made_by,
    )


def show_bundle(request: PageRequest) -> Response:
    """Show one bundle, beside the one that it is compared with.

    Raises:
        RequestError: 404.
    """
    book = request.releases
    found = book.stored_bundle(str(request.http.path_params["bundle_id"]))
    if found is None:
        raise page_error(404, "this bundle does not exist")
    moves = book.moves_of(found.id)
    replaced = next((each.serving for each, _ in moves if each.candidate == found.id), None)
    against = request.query.get("against") or replaced or book.in_force()
    other = None if against in (None, found.id) else book.stored_bundle(against or "")
    described = found.description
    return request.page(
        "bundle.html",
        bundle=found,
        made_by=made_by,
        serving=book.in_force(),
        others=[id_ for id_ in book.bundles()[:MOST_LISTED] if id_ != found.id],
        other=other,
        changes=() if other is None else describe_differences(other.description, described),
        settings={key: format_setting(value) for key, value in described.settings.items()},
        moves=moves[::-1],
    )
