package onetake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// fastClock is a clock whose delays take no time.
type fastClock struct {
	systemClock
	mutex sync.Mutex
	time  time.Duration
	slept []time.Duration
	walls []time.Time
}

func (c *fastClock) Monotonic() time.Duration {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.time
}

func (c *fastClock) Now() time.Time {
	if len(c.walls) == 0 {
		return time.Now()
	}
	now := c.walls[0]
	c.walls = c.walls[1:]
	return now
}

func (c *fastClock) Sleep(ctx context.Context, delay time.Duration) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.slept = append(c.slept, delay)
	c.time += delay
	return ctx.Err()
}

func (c *fastClock) Random() float64 { return 0.5 }

// serve starts a server that records requests and their bodies.
func serve(t *testing.T, handle func(w http.ResponseWriter, number int)) (string, func() []*http.Request, func() []string) {
	t.Helper()
	var mutex sync.Mutex
	var requests []*http.Request
	var bodies []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mutex.Lock()
		requests, bodies = append(requests, r), append(bodies, string(body))
		number := len(requests)
		mutex.Unlock()
		handle(w, number)
	}))
	t.Cleanup(server.Close)
	received := func() []*http.Request { mutex.Lock(); defer mutex.Unlock(); return requests }
	texts := func() []string { mutex.Lock(); defer mutex.Unlock(); return bodies }
	return server.URL, received, texts
}

func statuses(list ...int) func(http.ResponseWriter, int) {
	return func(w http.ResponseWriter, number int) {
		if number > len(list) {
			number = len(list)
		}
		w.WriteHeader(list[number-1])
	}
}

func rows(t *testing.T, path string) [][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", path))
	if err != nil {
		t.Fatal(err)
	}
	var found [][]string
	for _, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		if !strings.HasPrefix(line, "#") {
			found = append(found, strings.Split(line, "\t"))
		}
	}
	return found
}

func TestKeysAreThoseOfTheVectors(t *testing.T) {
	for _, row := range rows(t, "clients/conformance/keys.tsv") {
		last := len(row) - 1
		if key := KeyFrom(row[0], row[1:last]...); key != row[last] {
			t.Errorf("%q: %s", row, key)
		}
	}
	for _, row := range rows(t, "crates/onetake-core/src/derived.tsv") {
		step, err := StepKey(row[4], "charge-card")
		if err != nil || step != row[5] {
			t.Errorf("%q: %s, %v", row, step, err)
		}
		if undo, err := CompensationKey(step); err != nil || undo != row[6] {
			t.Errorf("%q: %s, %v", row, undo, err)
		}
	}
	if _, err := StepKey("no uuid", "charge-card"); !errors.Is(err, ErrInvalidKey) {
		t.Error(err)
	}
}

func TestANewKeyIsAUuidOfVersion7WithTheTimeInFront(t *testing.T) {
	key := newKey(time.UnixMilli(0x0123456789ab))
	if !regexp.MustCompile(`^01234567-89ab-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(key) {
		t.Error(key)
	}
	if NewKey() == NewKey() {
		t.Error("two keys are the same")
	}
}

func TestAKeyThatTheServerWouldRefuseIsRefusedBeforeAnythingIsSent(t *testing.T) {
	url, received, _ := serve(t, statuses(201))
	for _, key := range []string{"short", strings.Repeat("x", 256), "0123456789 abcdef", "0123456789abcdeü", `"0123456789abcdef"`} {
		request, _ := http.NewRequest("POST", url, nil)
		request.Header[KeyHeader] = []string{key}
		if _, err := (&http.Client{Transport: &Transport{}}).Do(request); !errors.Is(err, ErrInvalidKey) {
			t.Errorf("%q: %v", key, err)
		}
	}
	if len(received()) != 0 {
		t.Error("something was sent")
	}
}

func TestAStreamIsRefusedBeforeAnythingIsSent(t *testing.T) {
	url, received, _ := serve(t, statuses(201))
	stream := io.MultiReader(strings.NewReader("x"))
	_, err := (&http.Client{Transport: &Transport{}}).Post(url, "text/plain", stream)
	if !errors.Is(err, ErrBodyNotReplayable) || len(received()) != 0 {
		t.Error(err, received())
	}
}

func TestEveryAttemptHasTheSameBodyAndFreshHeaders(t *testing.T) {
	url, received, bodies := serve(t, statuses(503, 201))
	token := 0
	header := func() http.Header {
		token++
		return http.Header{"authorization": {fmt.Sprintf("Bearer %d", token)}}
	}
	client := &http.Client{Transport: &Transport{Clock: &fastClock{}, Header: header}}
	response, err := client.Post(url, "text/plain", strings.NewReader("abc"))
	if err != nil || response.StatusCode != 201 {
		t.Fatal(response, err)
	}
	if got := fmt.Sprint(bodies()); got != "[abc abc]" {
		t.Error(got)
	}
	for i, request := range received() {
		if request.Header.Get("Authorization") != fmt.Sprintf("Bearer %d", i+1) {
			t.Error(request.Header)
		}
	}
	outcome, ok := OutcomeOf(response)
	if !ok || outcome.Attempts != 2 || outcome.Key != received()[0].Header.Get(KeyHeader) {
		t.Error(outcome)
	}
}

func TestOtherRequestsAndRefusalsAreAsBefore(t *testing.T) {
	url, received, _ := serve(t, statuses(503, 402))
	client := &http.Client{Transport: &Transport{}}
	response, err := client.Get(url)
	if err != nil || response.StatusCode != 503 || received()[0].Header.Get(KeyHeader) != "" {
		t.Error(response, err)
	}
	response, err = client.Post(url, "text/plain", nil)
	if err != nil || response.StatusCode != 402 {
		t.Error(response, err)
	}
}

func TestACancelledContextEndsACall(t *testing.T) {
	url, _, _ := serve(t, func(w http.ResponseWriter, _ int) {
		w.Header().Set("Retry-After", "20")
		w.WriteHeader(503)
	})
	ctx, cancel := context.WithCancel(context.Background())
	observe := func(event Event) {
		if event.Type == "retry" {
			cancel()
		}
	}
	request, _ := http.NewRequestWithContext(ctx, "POST", url, nil)
	_, err := (&http.Client{Transport: &Transport{Observe: observe}}).Do(request)
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// An observer gets the context of its call, so that it finds the span of the caller in it.
func TestAnEventHasTheContextOfItsCall(t *testing.T) {
	type span struct{}
	url, _, _ := serve(t, statuses(503, 503, 201))
	var mutex sync.Mutex
	seen := map[any][]string{}
	observe := func(event Event) {
		mutex.Lock()
		defer mutex.Unlock()
		name := event.Context.Value(span{})
		seen[name] = append(seen[name], fmt.Sprint(event.Type, " ", event.Status))
	}
	client := &http.Client{Transport: &Transport{Clock: &fastClock{}, Observe: observe}}
	var group sync.WaitGroup
	for _, name := range []string{"one", "two"} {
		ctx := context.WithValue(context.Background(), span{}, name)
		group.Add(1)
		go func() {
			defer group.Done()
			request, _ := http.NewRequestWithContext(ctx, "POST", url, nil)
			if _, err := client.Do(request); err != nil {
				t.Error(err)
			}
		}()
	}
	group.Wait()
	retries := 0
	for name, events := range seen {
		if events[0] != "attempt 0" || events[len(events)-1] != "end 201" {
			t.Error(name, events)
		}
		retries += strings.Count(strings.Join(events, ","), "retry 503")
	}
	if len(seen) != 2 || retries != 2 {
		t.Error(seen)
	}
}

func TestTheDeadlineOfTheContextIsSent(t *testing.T) {
	url, received, _ := serve(t, statuses(201))
	client := &http.Client{Transport: &Transport{}, Timeout: 7 * time.Second}
	if _, err := client.Post(url, "text/plain", nil); err != nil {
		t.Fatal(err)
	}
	sent := received()[0].Header.Get("X-Request-Timeout-Ms")
	if len(sent) != 4 || sent > "7000" {
		t.Error(sent)
	}
}

func TestAWallClockThatJumpsChangesNeitherDeadlineNorDelays(t *testing.T) {
	url, _, _ := serve(t, statuses(503, 503, 201))
	clock := &fastClock{walls: []time.Time{time.Unix(0, 0), time.Unix(1e11, 0), time.Unix(-1e9, 0), time.Unix(5, 0)}}
	if _, err := (&http.Client{Transport: &Transport{Clock: clock}}).Post(url, "text/plain", nil); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(clock.slept); got != "[100ms 200ms]" {
		t.Error(got)
	}
}

func TestAHandleOnAnotherServerIsNotAsked(t *testing.T) {
	other, received, _ := serve(t, statuses(200))
	url, _, _ := serve(t, func(w http.ResponseWriter, _ int) {
		w.Header().Set("Location", other+"/.onetake/operations/h")
		w.WriteHeader(202)
	})
	client := &http.Client{Transport: &Transport{Clock: &fastClock{}}}
	if _, err := client.Post(url, "text/plain", nil); !errors.Is(err, ErrInProgress) {
		t.Error(err)
	}
	if len(received()) != 0 {
		t.Error("the other server was asked")
	}
}

func TestErrorsSayWhatToDoAndHoldTheAnswer(t *testing.T) {
	url, _, _ := serve(t, func(w http.ResponseWriter, _ int) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(500)
		fmt.Fprint(w, `{"code":"previous_attempt_failed","detail":"It broke.","reference":"2KPP"}`)
	})
	_, err := (&http.Client{Transport: &Transport{}}).Post(url, "text/plain", nil)
	var failed *CallError
	if !errors.Is(err, ErrOutcomeUnknown) || !errors.As(err, &failed) {
		t.Fatal(err)
	}
	for _, words := range []string{"do not pick a new key", "It broke.", "reference 2KPP"} {
		if !strings.Contains(err.Error(), words) {
			t.Error(err)
		}
	}
	if body, _ := io.ReadAll(failed.Response.Body); !strings.Contains(string(body), "It broke.") {
		t.Error(string(body))
	}
}

func TestTheMiddlewareReadsTheGatewaysHeaders(t *testing.T) {
	var got Operation
	handler := Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got, _ = OperationFrom(r.Context())
	}))
	request := httptest.NewRequest("POST", "/charges", nil)
	request.Header.Set(KeyHeader, "k")
	request.Header.Set("Idempotency-Fence", "18446744073709551615")
	request.Header.Set("Idempotency-Derived-Key", "d")
	handler.ServeHTTP(httptest.NewRecorder(), request)
	if got != (Operation{"k", 18446744073709551615, "d"}) {
		t.Error(got)
	}
}

func TestTheReconcileHandlerAnswersAsTheGatewayExpects(t *testing.T) {
	find := func(_ context.Context, key string) (Reconciled, error) {
		switch key {
		case "/done":
			return Reconciled{Outcome: "record", Status: 201, Body: map[string]int{"charge": 1}, Header: http.Header{"location": {"/charges/1"}}}, nil
		case "/never":
			return Reconciled{Outcome: "release"}, nil
		case "/broken":
			return Reconciled{Outcome: "release"}, errors.New("database")
		}
		return Reconciled{}, nil
	}
	handler := ReconcileHandler(func(r *http.Request) string { return r.URL.Path }, find)
	for _, want := range []struct {
		path    string
		status  int
		outcome string
		body    string
	}{
		{"/done", 200, "record", `{"charge":1}`},
		{"/never", 404, "release", ""},
		{"/broken", 503, "unknown", ""},
		{"/other", 503, "unknown", ""},
	} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", want.path, nil))
		if w.Code != want.status || w.Header().Get(OutcomeHeader) != want.outcome || w.Body.String() != want.body {
			t.Error(want, w.Code, w.Header(), w.Body)
		}
		if want.path == "/done" && (w.Header().Get("Onetake-Status") != "201" || w.Header().Get("Location") != "/charges/1") {
			t.Error(w.Header())
		}
	}
}

func TestEveryBlockOfTheReadmeRuns(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllStringSubmatch(string(text), -1)
	requests := []int{1, 2, 2, 0}
	if len(blocks) != len(requests) {
		t.Fatal(len(blocks), "blocks")
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for i, block := range blocks {
		// The first response to a key is lost, so that a block with a key needs a retry.
		url, received, _ := serve(t, func(w http.ResponseWriter, number int) {
			if requests[i] == 2 && number == 1 {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(201)
		})
		folder := t.TempDir()
		module := "module example\n\ngo 1.19\n\nrequire onetake v0.0.0\n\nreplace onetake => " + here + "\n"
		program := strings.ReplaceAll(block[1], "https://api.example.com", url)
		for name, content := range map[string]string{"go.mod": module, "main.go": program} {
			if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		run := exec.Command("go", "run", ".")
		run.Dir = folder
		if output, err := run.CombinedOutput(); err != nil {
			t.Errorf("block %d: %v\n%s", i+1, err, output)
		}
		if len(received()) != requests[i] {
			t.Errorf("block %d: %d requests", i+1, len(received()))
		}
	}
}
