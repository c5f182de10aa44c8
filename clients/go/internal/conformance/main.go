// Command conformance plays the scenarios of clients/conformance: conformance SERVER FILE [NAME…].
// With one argument, the URL of a lossy proxy, it counts the effects of 1,000 intents. It prints one
// JSON line each.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	"onetake"
)

const client = "go net/http"

type settings struct {
	Deadline       int64              `json:"deadline_ms"`
	AttemptTimeout int64              `json:"attempt_timeout_ms"`
	AttemptsMax    int                `json:"attempts_max"`
	BackoffBase    int64              `json:"backoff_base_ms"`
	BackoffMax     int64              `json:"backoff_max_ms"`
	Budget         map[string]float64 `json:"budget"`
	Random         []float64          `json:"random"`
	Calls          int                `json:"calls"`
	Through        string             `json:"through"`
	WallClock      string             `json:"wall_clock"`
	Key            string             `json:"key"`
}

type scenario struct {
	Name   string          `json:"name"`
	Client json.RawMessage `json:"client"`
	Expect map[string]any  `json:"expect"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 1 {
		return countEffects(arguments[0])
	}
	if len(arguments) < 2 {
		return errors.New("usage: conformance SERVER FILE [NAME...], or conformance PROXY")
	}
	server, names := arguments[0], arguments[2:]
	text, err := os.ReadFile(arguments[1])
	if err != nil {
		return err
	}
	var document struct {
		Defaults  json.RawMessage `json:"defaults"`
		Scenarios []scenario      `json:"scenarios"`
	}
	if err := json.Unmarshal(text, &document); err != nil {
		return err
	}
	failed := false
	for _, one := range document.Scenarios {
		var set settings
		if err := json.Unmarshal(document.Defaults, &set); err != nil {
			return err
		}
		if one.Client != nil {
			// A budget of the scenario replaces the default as a whole.
			if strings.Contains(string(one.Client), `"budget"`) {
				set.Budget = nil
			}
			if err := json.Unmarshal(one.Client, &set); err != nil {
				return err
			}
		}
		// The queue is for programs of users; this client has none.
		if set.Through == "queue" || (len(names) > 0 && !contains(names, one.Name)) {
			continue
		}
		why, err := play(server, one, set)
		if err != nil {
			why = []string{err.Error()}
		}
		failed = failed || len(why) > 0
		printLine(map[string]any{"client": client, "scenario": one.Name, "ok": len(why) == 0, "why": why})
	}
	if failed {
		return errors.New("some scenarios are red")
	}
	return nil
}

func play(server string, one scenario, set settings) ([]string, error) {
	var started struct {
		Run  int    `json:"run"`
		Path string `json:"path"`
	}
	if err := control(http.MethodPost, server+"/-/runs/"+one.Name, &started); err != nil {
		return nil, err
	}
	clock := &virtualClock{random: set.Random, wall: time.Now(), delays: []any{}}
	if set.WallClock != "" {
		wall, err := time.Parse(time.RFC3339, set.WallClock)
		if err != nil {
			return nil, err
		}
		clock.wall = wall
	}
	initial, ok := set.Budget["initial"]
	if !ok {
		initial = set.Budget["reserve"]
	}
	transport := &onetake.Transport{
		Limits: onetake.Limits{
			Deadline:       millis(set.Deadline),
			AttemptTimeout: millis(set.AttemptTimeout),
			AttemptsMax:    set.AttemptsMax,
			BackoffBase:    millis(set.BackoffBase),
			BackoffMax:     millis(set.BackoffMax),
		},
		Budget:         onetake.NewBudget(set.Budget["reserve"], set.Budget["ratio"], initial),
		ErrorOnRefusal: true,
		Clock:          clock,
	}
	var results []map[string]any
	for call := 0; call < set.Calls; call++ {
		request, err := http.NewRequest(http.MethodPost, server+started.Path+"/charges", strings.NewReader(`{"amount":10}`))
		if err != nil {
			return nil, err
		}
		request.Header.Set("Content-Type", "application/json")
		if set.Key != "" {
			request.Header.Set(onetake.KeyHeader, set.Key)
		}
		response, err := (&http.Client{Transport: transport}).Do(request)
		results = append(results, seen(response, err))
	}
	var report struct {
		Requests []map[string]any `json:"requests"`
	}
	if err := control(http.MethodGet, fmt.Sprintf("%s/-/runs/%d", server, started.Run), &report); err != nil {
		return nil, err
	}
	return differences(one.Expect, report.Requests, clock.delays, results), nil
}

func seen(response *http.Response, err error) map[string]any {
	if err == nil {
		response.Body.Close()
		outcome, _ := onetake.OutcomeOf(response)
		return map[string]any{
			"kind": "ok", "status": response.StatusCode, "replayed": outcome.Replayed,
			"reference": outcome.Reference, "attempts": outcome.Attempts,
		}
	}
	var failed *onetake.CallError
	if !errors.As(err, &failed) {
		return map[string]any{"kind": err.Error()}
	}
	kinds := map[error]string{
		onetake.ErrMismatch: "mismatch", onetake.ErrInProgress: "in_progress",
		onetake.ErrOutcomeUnknown: "outcome_unknown", onetake.ErrRefused: "refused",
		onetake.ErrUnavailable: "unavailable",
	}
	found := map[string]any{
		"kind": kinds[failed.Kind], "attempts": failed.Attempts, "replayed": failed.Replayed,
		"reference": failed.Reference, "code": failed.Problem.Code(), "reason": string(failed.Reason),
	}
	if failed.Response != nil {
		found["status"] = failed.Response.StatusCode
	}
	return found
}

// differences compares what is expected with what happened.
func differences(expect map[string]any, requests []map[string]any, delays []any, results []map[string]any) []string {
	column := func(name string) []any {
		values := []any{}
		for _, request := range requests {
			values = append(values, request[name])
		}
		return values
	}
	actual := map[string]any{
		"requests": len(requests), "keys": named(column("key")), "methods": column("method"),
		"delays_ms": delays, "timeouts_ms": column("timeout_ms"),
	}
	var listed []any
	expected, _ := expect["results"].([]any)
	for i, result := range results {
		only := map[string]any{}
		if i < len(expected) {
			members, _ := expected[i].(map[string]any)
			for name := range members {
				only[name] = result[name]
			}
		}
		listed = append(listed, only)
	}
	actual["results"] = listed
	why := []string{}
	for name, want := range expect {
		// Both sides go through JSON, so that numbers have one type.
		left, _ := json.Marshal(want)
		right, _ := json.Marshal(actual[name])
		var a, b any
		_, _ = json.Unmarshal(left, &a), json.Unmarshal(right, &b)
		if !reflect.DeepEqual(a, b) {
			why = append(why, fmt.Sprintf("%s: expected %s, got %s", name, left, right))
		}
	}
	return why
}

// named replaces each key that a client made by a letter.
func named(keys []any) []any {
	letters := map[string]string{}
	for i, value := range keys {
		key, ok := value.(string)
		if !ok || len(key) != 36 {
			continue
		}
		if _, ok := letters[key]; !ok {
			letters[key] = string(rune('a' + len(letters)))
		}
		keys[i] = letters[key]
	}
	return keys
}

// countEffects sends 1,000 intents through a gateway whose responses are lost.
func countEffects(proxy string) error {
	const intents, atOnce = 1000, 20
	type effects struct{ Keys, Runs, Lost int }
	var before, after struct {
		effects
		Most int `json:"runs_of_one_key_max"`
	}
	if err := control(http.MethodGet, proxy+"/-/effects", &before); err != nil {
		return err
	}
	began := time.Now()
	transport := &onetake.Transport{
		Limits: onetake.Limits{AttemptsMax: 20, BackoffBase: 20 * time.Millisecond},
		Budget: onetake.NewBudget(intents, 1, intents),
	}
	numbers := make(chan int)
	var group sync.WaitGroup
	var mutex sync.Mutex
	succeeded := 0
	for worker := 0; worker < atOnce; worker++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for number := range numbers {
				body := strings.NewReader(fmt.Sprintf("amount=%d", number))
				response, err := (&http.Client{Transport: transport}).Post(proxy+"/charges", "text/plain", body)
				if err == nil && response.StatusCode == http.StatusCreated {
					mutex.Lock()
					succeeded++
					mutex.Unlock()
				}
			}
		}()
	}
	for number := 0; number < intents; number++ {
		numbers <- number
	}
	close(numbers)
	group.Wait()
	if err := control(http.MethodGet, proxy+"/-/effects", &after); err != nil {
		return err
	}
	keys, runs := after.Keys-before.Keys, after.Runs-before.Runs
	ok := keys == intents && runs == intents && after.Most == 1 && succeeded == intents
	printLine(map[string]any{
		"client": client, "intents": intents, "keys": keys, "effects": runs, "ok": ok,
		"lost": after.Lost - before.Lost, "seconds": time.Since(began).Round(100 * time.Millisecond).Seconds(),
	})
	if !ok {
		return errors.New("the effects are not those of the intents")
	}
	return nil
}

func control(method, url string, into any) error {
	request, err := http.NewRequest(method, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

func printLine(line map[string]any) {
	text, _ := json.Marshal(line)
	fmt.Println(string(text))
}

func contains(list []string, one string) bool {
	for _, item := range list {
		if item == one {
			return true
		}
	}
	return false
}

func millis(number int64) time.Duration { return time.Duration(number) * time.Millisecond }

// virtualClock is a clock that a delay advances at once. Timeouts of attempts take their real time.
type virtualClock struct {
	mutex  sync.Mutex
	time   time.Duration
	wall   time.Time
	random []float64
	drawn  int
	delays []any
}

func (c *virtualClock) Monotonic() time.Duration {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.time
}

func (c *virtualClock) Now() time.Time { return c.wall }

func (c *virtualClock) Sleep(_ context.Context, delay time.Duration) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.delays = append(c.delays, float64(delay)/float64(time.Millisecond))
	c.time += delay
	return nil
}

func (c *virtualClock) AfterFunc(delay time.Duration, f func()) func() {
	timer := time.AfterFunc(delay, func() {
		c.mutex.Lock()
		c.time += delay
		c.mutex.Unlock()
		f()
	})
	return func() { timer.Stop() }
}

func (c *virtualClock) Random() float64 {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	value := c.random[c.drawn%len(c.random)]
	c.drawn++
	return value
}
