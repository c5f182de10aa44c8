import sys
from django.conf import settings
from django.core.management import execute_from_command_line
from django.http import HttpResponse
from django.urls import re_path
from django.views.decorators.http import require_http_methods

settings.configure(DEBUG=False, SECRET_KEY="charges", ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], MIDDLEWARE=[])


@require_http_methods(["POST"])
def charge(request):
    return HttpResponse("ran")


# The `$` of a regular expression also matches before a newline at the end.
urlpatterns = [re_path(r"^v1/charges$", charge)]

execute_from_command_line(["django", "runserver", "--noreload", "--skip-checks", f"127.0.0.1:{sys.argv[1]}"])
