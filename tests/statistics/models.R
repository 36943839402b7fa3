# Splines, Firth's correction and differences between sites of one table in R, as lines of: kind, name, value.
# Arguments: a CSV with the columns site, age, male, event, pressure, admissions, days; the knots of age.
library(survival)
library(splines)
given <- commandArgs(trailingOnly = TRUE)
rows <- read.csv(given[1])
knots <- as.numeric(given[-1])
say <- function(kind, name, value) cat(kind, "\t", name, "\t", sprintf("%.17g", value), "\n", sep = "")
exact <- glm.control(epsilon = 1e-15, maxit = 100)
still <- coxph.control(eps = 1e-13, toler.chol = 1e-14, iter.max = 50)
inner <- knots[-c(1, length(knots))]
ends <- range(knots)
basis <- function(age) unclass(ns(age, knots = inner, Boundary.knots = ends))
fits <- function(own, right) {
  of <- function(left, ...) glm(as.formula(paste(left, "~", right)), data = own, control = exact, ...)
  hazards <- as.formula(paste("Surv(days, event) ~", sub("factor\\(site\\)", "strata(site)", right)))
  list(
    binomial = of("event", family = binomial),
    gaussian = of("pressure", family = gaussian),
    poisson = of("admissions", family = poisson, offset = log(own$days)),
    cox = coxph(hazards, own, ties = "efron", control = still)
  )
}
# R's natural splines are another basis of the same curves.
whole <- fits(rows, "basis(age) + male + factor(site)")
at <- basis(knots)
for (kind in names(whole)) {
  places <- grep("basis", names(coef(whole[[kind]])))
  moved <- sweep(at, 2, at[length(knots) %/% 2 + 1, ])
  values <- moved %*% coef(whole[[kind]])[places]
  errors <- sqrt(rowSums((moved %*% vcov(whole[[kind]])[places, places]) * moved))
  for (k in seq_along(knots)) {
    say(paste(kind, "spline"), knots[k], values[k])
    say(paste(kind, "spline error"), knots[k], errors[k])
  }
}
# Firth's estimates are those of rows with added halves: each row's leverage h is h / 2 events and h / 2 others.
design <- model.matrix(~ age + male + factor(site), rows)
plain <- glm.fit(design, rows$event, family = binomial(), control = exact)
for (step in 1:300) {
  means <- plain$fitted.values
  root <- sqrt(means * (1 - means))
  h <- rowSums(qr.Q(qr(root * design))^2)
  before <- plain$coefficients
  plain <- suppressWarnings(glm.fit(design, (rows$event + h / 2) / (1 + h), weights = 1 + h, family = binomial(),
    start = before, control = exact))
  if (max(abs(plain$coefficients - before)) < 1e-13) break
}
means <- plain$fitted.values
errors <- sqrt(diag(solve(crossprod(sqrt(means * (1 - means)) * design))))
for (name in c("age", "male")) {
  say("firth coefficient", name, plain$coefficients[[name]])
  say("firth error", name, errors[[name]])
}
# Cochran's Q and the random-effects mean of each site's own fit.
own <- lapply(split(rows, rows$site), fits, right = "age + male")
for (kind in names(whole)) for (name in c("age", "male")) {
  b <- sapply(own, function(one) coef(one[[kind]])[[name]])
  w <- sapply(own, function(one) 1 / vcov(one[[kind]])[name, name])
  q <- sum(w * (b - sum(w * b) / sum(w))^2)
  v <- max(0, (q - length(b) + 1) / (sum(w) - sum(w^2) / sum(w)))
  say(paste(kind, "q"), name, q)
  say(paste(kind, "mean"), name, sum(b / (1 / w + v)) / sum(1 / (1 / w + v)))
}
